/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that this library stands before, as the next library in line has them. */
#ifndef NOVA_HPC_SHM_REAL_CALLS_H
#define NOVA_HPC_SHM_REAL_CALLS_H

#include <stddef.h>
#include <sys/types.h>

struct real_calls {
    int (*open)(const char *path, int flags, ...);
    int (*unlink)(const char *path);
    void *(*mmap)(void *address, size_t length, int protection, int flags, int fd, off_t offset);
    int (*munmap)(void *address, size_t length);
};

extern struct real_calls real;

/* To be called before any use of `real`, any number of times, in any thread. */
void find_real_calls(void);

#endif
