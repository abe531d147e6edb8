/* SPDX-License-Identifier: Apache-2.0 */
/* Makes calls of a program slow by LD_PRELOAD: a fault that no cause of ours explains. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int wanted(const char *name)
{
    const char *calls = getenv("NOVA_HPC_SLOW");

    return calls && calls[0] == name[0];
}

ssize_t pread64(int file, void *data, size_t size, off64_t place)
{
    static ssize_t (*real)(int, void *, size_t, off64_t);
    struct timespec pause = {0, 300000};

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "pread64");
    if (size == 4096 && wanted("read"))
        nanosleep(&pause, NULL);
    return real(file, data, size, place);
}

ssize_t pread(int file, void *data, size_t size, off_t place)
{
    return pread64(file, data, size, place);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    volatile int turns;

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    if (wanted("clock"))
        for (turns = 0; turns < 2000; turns++)
            ;
    return real(clock, now);
}
