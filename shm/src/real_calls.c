/* SPDX-License-Identifier: Apache-2.0 */
#include "real_calls.h"

#include <dlfcn.h>
#include <pthread.h>

struct real_calls real;

/* C has no conversion from an object's pointer to a function's; POSIX promises this one. */
static void find_call(void *pointer, const char *name)
{
    *(void **)pointer = dlsym(RTLD_NEXT, name);
}

static void find_calls(void)
{
    find_call(&real.open, "open");
    find_call(&real.unlink, "unlink");
    find_call(&real.mmap, "mmap");
    find_call(&real.munmap, "munmap");
}

void find_real_calls(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, find_calls);
}
