/* SPDX-License-Identifier: Apache-2.0 */
/* This process as a user of the shared memory: it joins when UCX first asks for a file, maps files,
 * and lets them go. Any thread may call any of these. */
#ifndef NOVA_HPC_SHM_MEMBERSHIP_H
#define NOVA_HPC_SHM_MEMBERSHIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "directory.h"

/* Join, the first time: false if this process does without, which was said then. */
bool join_segment(void);

/* The UUID of the memory, after join_segment(). */
const uint8_t *segment_uuid(void);

/* As open() with these flags: 0, or an errno. */
int open_file(const char *name, int flags, struct file_place *place);

/* As mmap() of the whole file: its address, or NULL with errno. */
void *map_file(const char *name, struct file_place place, size_t length, uint64_t offset);

/* As munmap(): false if the address is not in the shared memory. */
bool unmap_file(void *address);

/* As unlink(): 0, or an errno. */
int remove_file(const char *name);

#endif
