/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the lengths of UCX's addresses for all, and for processes of other machines alone. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

int main(void)
{
    void *library = dlopen("libworker-address.so", RTLD_NOW | RTLD_LOCAL);
    size_t (*measure_address)(int) = NULL;

    if (library)
        *(void **)&measure_address = dlsym(library, "measure_address");
    if (!measure_address) {
        printf("%s\n", dlerror());
        return 1;
    }
    printf("%zu %zu\n", measure_address(0), measure_address(1));
    return 0;
}
