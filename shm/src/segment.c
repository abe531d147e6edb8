/* SPDX-License-Identifier: Apache-2.0 */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "real_calls.h"

void copy_shared(void *to, const volatile void *from, size_t bytes)
{
    uint8_t *target = to;
    const volatile uint8_t *source = from;

    for (size_t i = 0; i < bytes; i++)
        target[i] = source[i];
}

const char *check_head(const struct segment_head *head, uint64_t bytes)
{
    if (head->magic != SEGMENT_MAGIC)
        return "it is no shared memory of nova-hpc, or its head is damaged";
    if (head->version != SEGMENT_VERSION)
        return "it has a version that this library does not know: install a newer nova-hpc-shm";
    if (head->parts < PARTS_MIN || head->parts > PARTS_MAX)
        return "its head is damaged (number of parts)";
    if (head->part_bytes < UNIT_BYTES || head->part_bytes > PART_BYTES_MAX ||
        head->part_bytes % UNIT_BYTES != 0)
        return "its head is damaged (size of a part)";
    if (head->bytes != UNIT_BYTES + head->parts * head->part_bytes)
        return "its head is damaged (size)";
    if (head->bytes > bytes)
        return "it is smaller than its head says";
    return NULL;
}

/* The size of a device-dax, from its driver: beyond it a process would get SIGBUS. 0: unknown. */
static uint64_t read_device_bytes(dev_t device)
{
    char path[64], text[32] = "";
    uint64_t bytes = 0;
    int fd;

    snprintf(path, sizeof path, "/sys/dev/char/%u:%u/size", major(device), minor(device));
    fd = real.open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    if (read(fd, text, sizeof text - 1) <= 0 || sscanf(text, "%" SCNu64, &bytes) != 1)
        bytes = 0;
    close(fd);
    return bytes;
}

static const char *map_device(int fd, bool to_write, struct segment *segment)
{
    int protection = to_write ? PROT_READ | PROT_WRITE : PROT_READ;
    struct segment_head head;
    struct stat status;
    const char *wrong;
    uint64_t bytes;
    off_t begin;
    void *mapped;

    if (fstat(fd, &status))
        return "it cannot be looked at";
    if (S_ISCHR(status.st_mode)) { /* the guest's kernel has cut the label off */
        begin = 0;
        bytes = read_device_bytes(status.st_rdev);
    } else if (S_ISREG(status.st_mode)) { /* the host's file */
        begin = (off_t)UNIT_BYTES;
        bytes = (uint64_t)status.st_size > UNIT_BYTES ? (uint64_t)status.st_size - UNIT_BYTES : 0;
    } else {
        errno = 0;
        return "it is no device-dax and no file";
    }
    errno = 0;
    if (bytes < UNIT_BYTES)
        return "its size is unknown (a container needs /sys), or too small";

    mapped = real.mmap(NULL, UNIT_BYTES, PROT_READ, MAP_SHARED, fd, begin);
    if (mapped == MAP_FAILED)
        return "its head cannot be mapped";
    copy_shared(&head, mapped, sizeof head);
    real.munmap(mapped, UNIT_BYTES);
    errno = 0;
    wrong = check_head(&head, bytes);
    if (wrong)
        return wrong;

    mapped = real.mmap(NULL, head.bytes, protection, MAP_SHARED, fd, begin);
    if (mapped == MAP_FAILED)
        return "it cannot be mapped";
    segment->base = mapped;
    segment->bytes = head.bytes;
    segment->part_bytes = head.part_bytes;
    segment->parts = head.parts;
    memcpy(segment->uuid, head.uuid, sizeof head.uuid);
    return NULL;
}

const char *map_segment(const char *path, bool to_write, struct segment *segment)
{
    int fd = real.open(path, (to_write ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    const char *wrong;
    int error;

    if (fd < 0)
        return "it cannot be opened";
    wrong = map_device(fd, to_write, segment);
    error = errno;
    close(fd);
    errno = error;
    return wrong;
}

void unmap_segment(struct segment *segment)
{
    real.munmap(segment->base, segment->bytes);
    segment->base = NULL;
}

struct part_directory *directory_of(const struct segment *segment, uint32_t part)
{
    return (struct part_directory *)(segment->base + UNIT_BYTES + part * segment->part_bytes);
}

bool read_owner(const struct segment *segment, uint32_t part, char owner[OWNER_BYTES + 1])
{
    copy_shared(owner, segment->base + OWNERS_AT + part * OWNER_BYTES, OWNER_BYTES);
    owner[OWNER_BYTES] = 0;
    return owner[0] != 0;
}
