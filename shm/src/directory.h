/* SPDX-License-Identifier: Apache-2.0 */
/* Files in the parts of a segment: made, mapped, unlinked, and their memory given again.
 *
 * A server's own directory is written under its own kernel's lock (server_lock.h). Only the bits of
 * struct process_entry are written without it, each by its process. The directories of other
 * servers are read, with nothing that keeps them still: what is read may be of another moment, or
 * written by an enemy. No function here reads or writes outside the segment, whatever lies in it,
 * and each ends.
 *
 * How a range is given again while a process of another server may just map it: the one sets its
 * bit, then looks whether the file is still there; the other says that the file is gone, then looks
 * for bits. Each does so with a full fence between, so at least one of the two sees the other. */
#ifndef NOVA_HPC_SHM_DIRECTORY_H
#define NOVA_HPC_SHM_DIRECTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "segment.h"

struct file_place {
    uint32_t part;
    uint32_t slot;
};

struct file_range {
    uint64_t offset; /* from the beginning of the part */
    uint64_t length;
};

/* A process of one server, as its directory knows it: *part* and its number from 1. */
struct process_place {
    uint32_t part;
    uint32_t number;
};

/* Whether a range lies in the part, behind its directory. */
bool is_sane_range(const struct segment *segment, struct file_range range);

/* Read where a file that can be used, or is being made, lies: false if none of this name does. */
bool find_file(const struct segment *segment, uint32_t part, const char *name,
               struct file_place *place);

/* The address of a range of a part. */
uint8_t *address_of(const struct segment *segment, uint32_t part, struct file_range range);

/* --- Of the own part, under the server's lock. ------------------------------------------------ */

/* The kernel of this server runs since *boot_id*: what another boot left is of the dead. */
void begin_boot(const struct segment *segment, uint32_t part, const char boot_id[BOOT_ID_BYTES]);

/* The process takes its number; who had it before is dead. */
void begin_process(const struct segment *segment, struct process_place process);

/* Bury the processes that *is_alive* denies, then give free what they had. */
void sweep_dead(const struct segment *segment, uint32_t part, bool (*is_alive)(uint32_t number));

/* Make the ranges of files that are gone and not used by any server free. */
void collect_ranges(const struct segment *segment, uint32_t part);

/* Make an entry for *name*: 0, or ENOSPC if all are taken. */
int make_file(const struct segment *segment, struct process_place process, const char *name,
              struct file_place *place);

/* Give the process's file a range of *length* (a multiple of RANGE_ALIGNMENT), first fit, and mark
 * it as used by the process: 0, ENOENT if it is no such file any more, ENOSPC. */
int give_range(const struct segment *segment, struct process_place process, struct file_place place,
               uint64_t length, struct file_range *range);

/* Others may use the file from now on: its memory has been filled with zeros. */
bool publish_file(const struct segment *segment, struct process_place process,
                  struct file_place place);

/* Unlink: false if the part has no such file. */
bool unlink_file(const struct segment *segment, uint32_t part, const char *name);

/* --- Of any part, without a lock. ------------------------------------------------------------- */

/* Mark the file as used by the process, if it still is *name*, and give its range. */
bool begin_use(const struct segment *segment, struct process_place process, struct file_place place,
               const char *name, struct file_range *range);

void end_use(const struct segment *segment, struct process_place process, struct file_place place);

/* --- To look at. ------------------------------------------------------------------------------ */

/* What a part holds, as far as what lies there makes sense. */
struct part_account {
    char boot_id[BOOT_ID_BYTES]; /* whatever lies there; ends with a zero */
    bool begun;                  /* false: all others are 0 */
    uint32_t live;               /* processes, of which some may have died since the last start */
    uint32_t files;              /* that can be used */
    uint64_t held;               /* bytes that cannot be given to a new file */
    uint64_t peer_files;         /* files of other parts that its processes have mapped now */
    uint64_t files_made;         /* since its server's boot */
    uint64_t peers_mapped;
};

struct part_account read_account(const struct segment *segment, uint32_t part);

#endif
