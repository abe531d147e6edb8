/* SPDX-License-Identifier: Apache-2.0 */
/* What UCX does with a file: made or opened, mapped, closed. */
#ifndef NOVA_HPC_SHM_USE_FILES_H
#define NOVA_HPC_SHM_USE_FILES_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define expect(right)                                                                              \
    do {                                                                                           \
        if (!(right)) {                                                                            \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #right);                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static inline int open_name(const char *name, int flags)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", getenv("NOVA_HPC_SHM_DIR"), name);
    return open(path, flags | O_RDWR, 0600);
}

static inline int unlink_name(const char *name)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", getenv("NOVA_HPC_SHM_DIR"), name);
    return unlink(path);
}

/* Map a new file of *bytes*, or one that is there: NULL if it cannot be. */
static inline uint64_t *map_name(const char *name, int flags, size_t bytes)
{
    int fd = open_name(name, flags);
    void *mapped;

    if (fd < 0)
        return NULL;
    mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return mapped == MAP_FAILED ? NULL : mapped;
}

#endif
