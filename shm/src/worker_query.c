/* SPDX-License-Identifier: Apache-2.0 */
/* Open MPI asks UCX for an address without memory to give to processes on other machines, and these
 * are on others. With memory, they can be reached by it. */
#include <dlfcn.h>
#include <stdint.h>

#include "membership.h"
#include "messages.h"
#include "real_calls.h"

/* Of UCX's ucp_worker_attr_t (ucp/api/ucp.h), what has been so since UCX 1.4. */
struct worker_attributes {
    uint64_t fields;
    uint32_t thread_mode;
    uint32_t address_flags;
};

#define FIELD_ADDRESS_FLAGS (1ull << 2) /* UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS */
#define ADDRESS_NET_ONLY 1u             /* UCP_WORKER_ADDRESS_FLAG_NET_ONLY */
#define ERROR_UNSUPPORTED -22           /* UCS_ERR_UNSUPPORTED */

typedef int (*worker_query)(void *worker, void *attributes);

/* UCX's own, as the caller would have found it: Open MPI loads UCX with a part of itself, so that
 * the next library in line need not have it. */
static worker_query find_query(const void *caller)
{
    worker_query query;
    Dl_info where;
    void *library;

    *(void **)&query = dlsym(RTLD_NEXT, "ucp_worker_query");
    if (query || !dladdr(caller, &where) || !where.dli_fname)
        return query;
    library = dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!library)
        return NULL;
    *(void **)&query = dlsym(library, "ucp_worker_query");
    dlclose(library);
    return query;
}

__attribute__((visibility("default"))) int ucp_worker_query(void *worker,
                                                            struct worker_attributes *attributes);
int ucp_worker_query(void *worker, struct worker_attributes *attributes)
{
    worker_query query;

    find_real_calls();
    query = find_query(__builtin_return_address(0));
    if (!query) {
        write_message("UCX's own ucp_worker_query is not to be found");
        return ERROR_UNSUPPORTED;
    }
    if (attributes->fields & FIELD_ADDRESS_FLAGS && join_segment())
        attributes->address_flags &= ~ADDRESS_NET_ONLY;
    return query(worker, attributes);
}
