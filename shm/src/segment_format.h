/* SPDX-License-Identifier: Apache-2.0 */
/* What lies where in the memory that the servers of one group on one host share.
 *
 * The host writes the head and the owners; each server writes its own part alone. All of it can be
 * written by every server, so nothing read here may be trusted: it is copied once, checked, used.
 *
 *   0                          head
 *   4096 + 64 * p              owner of part p: the server's UUID in ASCII, zeros if it has none
 *   2 MiB + p * part_bytes     part p: its directory (1 MiB), then the files
 */
#ifndef NOVA_HPC_SHM_SEGMENT_FORMAT_H
#define NOVA_HPC_SHM_SEGMENT_FORMAT_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

#define SEGMENT_MAGIC 0x314d48534350484eull /* "NHPCSHM1", little endian */
#define SEGMENT_VERSION 1u
#define UNIT_BYTES (2ull << 20) /* of device-dax: label and head take one each */
#define OWNERS_AT 4096u
#define OWNER_BYTES 64u
#define PARTS_MIN 2u
#define PARTS_MAX 16u
#define PART_BYTES_MAX (4ull << 30)

/* Changes with the structures below. Servers with different layouts are no peers of each other. */
#define DIRECTORY_LAYOUT 1u
#define DIRECTORY_BYTES (1ull << 20)
#define FILES_MAX 1024u
#define PROCESSES_MAX 448u /* numbers 1 to 448 */
#define NAME_BYTES 40u     /* with the zero behind it */
#define BOOT_ID_BYTES 40u
#define RANGE_ALIGNMENT 4096u
#define USE_WORDS (FILES_MAX / 64u)

struct segment_head {
    uint64_t magic;
    uint32_t version;
    uint32_t parts;
    uint64_t part_bytes;
    uint64_t bytes;
    uint8_t uuid[16];
};

enum file_state {
    FILE_FREE = 0,
    FILE_MADE = 1,   /* has a name, and no memory that another process may use */
    FILE_MAPPED = 2, /* can be used */
    FILE_GONE = 3    /* unlinked, or its maker ended: the memory is not given again while used */
};

struct file_entry {
    char name[NAME_BYTES];
    _Atomic uint64_t offset; /* from the beginning of the part */
    _Atomic uint64_t length;
    _Atomic uint32_t process; /* of this server, that made it */
    _Atomic uint32_t state;
};

/* What one process has mapped: a bit for each file of each part. Only this process sets them, in
 * its own server's part, so that it needs no lock for it. */
struct process_entry {
    _Atomic uint32_t live;
    uint32_t padding[15];
    _Atomic uint64_t uses[PARTS_MAX][USE_WORDS];
};

struct part_directory {
    char boot_id[BOOT_ID_BYTES]; /* of the kernel whose processes have written here */
    _Atomic uint32_t layout;     /* 0: nothing was written yet */
    uint32_t padding;
    _Atomic uint64_t files_made;   /* since that boot: how much the part was used, */
    _Atomic uint64_t peers_mapped; /* and the files of other parts */
    struct file_entry files[FILES_MAX];
    struct process_entry processes[PROCESSES_MAX]; /* of process number n: n - 1 */
};

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the memory is little endian");
static_assert(sizeof(struct segment_head) == 48, "the host writes 48 bytes");
static_assert(sizeof(struct file_entry) == 64, "a cache line");
static_assert(sizeof(struct process_entry) == 64 + PARTS_MAX * FILES_MAX / 8, "no holes");
static_assert(sizeof(struct part_directory) <= DIRECTORY_BYTES, "fits before the files");
static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "no lock of a library in memory of others");

#endif
