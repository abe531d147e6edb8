/* SPDX-License-Identifier: Apache-2.0 */
/* The shared memory, mapped: its head read once and checked. */
#ifndef NOVA_HPC_SHM_SEGMENT_H
#define NOVA_HPC_SHM_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "segment_format.h"

/* All of it is a copy: what the head says later changes nothing. */
struct segment {
    uint8_t *base;
    uint64_t bytes;
    uint64_t part_bytes;
    uint32_t parts;
    uint8_t uuid[16];
};

/* Check a copied *head* against the *bytes* that the device really has: NULL, or what is wrong. */
const char *check_head(const struct segment_head *head, uint64_t bytes);

/* Map the device or file at *path*: NULL, or what is wrong, with errno of the call or 0. */
const char *map_segment(const char *path, bool to_write, struct segment *segment);

void unmap_segment(struct segment *segment);

/* The directory of *part*, which is below segment->parts. */
struct part_directory *directory_of(const struct segment *segment, uint32_t part);

/* Copy the owner of *part*: false if no server has it. *owner* always ends with a zero. */
bool read_owner(const struct segment *segment, uint32_t part, char owner[OWNER_BYTES + 1]);

/* Copy *bytes* of memory that others may write meanwhile. */
void copy_shared(void *to, const volatile void *from, size_t bytes);

#endif
