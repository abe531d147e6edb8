/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment of the process says; nova-hpc-guest writes it. */
#ifndef NOVA_HPC_SHM_SETTINGS_H
#define NOVA_HPC_SHM_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

struct settings {
    const char *device;     /* NOVA_HPC_SHM_DEVICE */
    const char *lock;       /* NOVA_HPC_SHM_LOCK: a file of this server, for locks of its kernel */
    const char *part;       /* NOVA_HPC_SHM_PART, or NULL: the number is in PART_FILE */
    char directory[256];    /* NOVA_HPC_SHM_DIR, with a slash behind it: UCX's UCX_POSIX_DIR */
    size_t directory_bytes; /* its length */
    bool debug;             /* NOVA_HPC_SHM_DEBUG */
};

#define PART_FILE "/run/nova-hpc/part"

extern struct settings settings;

/* Once, before any thread. */
void read_settings(void);

#endif
