/* SPDX-License-Identifier: Apache-2.0 */
/* Becomes libworker-address.so, which a program loads as Open MPI loads its part for UCX: so that
 * the program itself has no UCX. */
#include <string.h>
#include <ucp/api/ucp.h>

/* How long the address is that UCX gives for processes of other machines (*net_only*), or for all:
 * 0 if it gives none. */
size_t measure_address(int net_only);
size_t measure_address(int net_only)
{
    ucp_params_t wanted = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t how = {.field_mask = 0};
    ucp_worker_attr_t attributes;
    ucp_context_h context;
    ucp_worker_h worker;

    if (ucp_init(&wanted, NULL, &context) != UCS_OK)
        return 0;
    if (ucp_worker_create(context, &how, &worker) != UCS_OK)
        return 0;
    memset(&attributes, 0, sizeof attributes);
    attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS;
    attributes.address_flags = net_only ? UCP_WORKER_ADDRESS_FLAG_NET_ONLY : 0;
    if (ucp_worker_query(worker, &attributes) != UCS_OK)
        return 0;
    ucp_worker_release_address(worker, attributes.address);
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return attributes.address_length;
}
