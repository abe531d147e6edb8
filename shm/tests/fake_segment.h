/* SPDX-License-Identifier: Apache-2.0 */
/* A segment in memory of exactly its size, so that the sanitizer sees a step outside. */
#ifndef NOVA_HPC_SHM_FAKE_SEGMENT_H
#define NOVA_HPC_SHM_FAKE_SEGMENT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "segment.h"

#define expect(right)                                                                              \
    do {                                                                                           \
        if (!(right)) {                                                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #right);                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static inline struct segment make_segment(uint32_t parts)
{
    struct segment segment = {.parts = parts, .part_bytes = UNIT_BYTES};

    segment.bytes = UNIT_BYTES + parts * segment.part_bytes;
    segment.base = aligned_alloc(4096, segment.bytes);
    expect(segment.base);
    memset(segment.base, 0, segment.bytes);
    for (uint32_t part = 0; part < parts; part++)
        memcpy(segment.base + OWNERS_AT + part * OWNER_BYTES, "a-server", 8);
    return segment;
}

#endif
