/* SPDX-License-Identifier: Apache-2.0 */
#include "membership.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "call_order.h"
#include "messages.h"
#include "real_calls.h"
#include "server_lock.h"
#include "settings.h"

#define MAPPINGS_MAX (PARTS_MAX * FILES_MAX)

/* A file that this process has mapped. Kept here: what lies in the memory is not asked again. */
struct mapping {
    struct file_place place;
    struct file_range range;
    uint32_t times;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static enum { NOT_TRIED, JOINED, REFUSED } membership;
static struct segment segment;
static struct process_place self;
static struct mapping mappings[MAPPINGS_MAX];
static uint32_t mappings_count;
/* Read without the mutex: munmap() is called often, and seldom for this memory. */
static _Atomic uintptr_t segment_begin, segment_end;

/* No thread of this process holds the server's lock while it forks: a child would keep it. */
static void begin_fork(void)
{
    pthread_mutex_lock(&mutex);
}

static void end_fork(void)
{
    pthread_mutex_unlock(&mutex);
}

/* A child has its parent's mappings, and is no user of its own until it opens something: what it
 * unmaps at its exit must not be taken for what the parent unmaps. The parent's number stays taken
 * while the child lives, so nothing that it sees is given again. */
static void begin_child(void)
{
    if (membership == JOINED) {
        mappings_count = 0;
        membership = NOT_TRIED;
    }
    pthread_mutex_unlock(&mutex);
}

static void say_refused(const char *path, const char *wrong)
{
    const char *colon = errno ? ": " : "";
    const char *words = errno ? strerror(errno) : "";

    write_message("%s: %s%s%s; the job goes on without shared memory", path, wrong, colon, words);
}

static bool read_number(const char *text, uint32_t *number)
{
    char *end;
    unsigned long value;

    errno = 0;
    value = strtoul(text, &end, 10);
    if (errno || end == text || text[0] < '0' || text[0] > '9' || value >= PARTS_MAX)
        return false;
    while (*end == '\n' || *end == ' ')
        end++;
    *number = (uint32_t)value;
    return !*end;
}

/* Read a small file: its text, empty if there is none. */
static void read_text(const char *path, char *text, size_t bytes)
{
    int fd = real.open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, bytes - 1);

    text[length < 0 ? 0 : length] = 0;
    if (fd >= 0)
        close(fd);
}

static bool read_part(uint32_t *part)
{
    const char *from = settings.part ? "NOVA_HPC_SHM_PART" : PART_FILE;
    char text[16];

    if (settings.part)
        strncat(strcpy(text, ""), settings.part, sizeof text - 1);
    else
        read_text(PART_FILE, text, sizeof text);
    if (read_number(text, part) && *part < segment.parts)
        return true;
    errno = 0;
    say_refused(from, "it is no number of a part of the memory");
    return false;
}

/* The kernel's own number of this boot. Without one, nothing of before is known to be alive. */
static void read_boot_id(char boot_id[BOOT_ID_BYTES])
{
    memset(boot_id, 0, BOOT_ID_BYTES);
    read_text("/proc/sys/kernel/random/boot_id", boot_id, 37);
}

static bool enter_directory(void)
{
    char boot_id[BOOT_ID_BYTES];

    read_boot_id(boot_id);
    if (!boot_id[0]) {
        errno = 0;
        say_refused("/proc/sys/kernel/random/boot_id", "it cannot be read");
        return false;
    }
    if (!lock_server()) {
        say_refused(settings.lock, "the lock of this server's part is not to be had");
        return false;
    }
    begin_boot(&segment, self.part, boot_id);
    begin_process(&segment, self);
    sweep_dead(&segment, self.part, is_number_alive);
    unlock_server();
    return true;
}

static bool map_device(void)
{
    const char *wrong;

    if (segment.base) /* a forked child has its parent's mapping of it, which stays */
        return true;
    wrong = map_segment(settings.device, true, &segment);
    if (!wrong)
        return true;
    if (errno != ENOENT) /* a server without shared memory is no fault */
        say_refused(settings.device, wrong);
    return false;
}

/* Whether what UCX maps comes here. If not, its first mapping would end the job. */
static bool is_first(void)
{
    const char *other = find_other_calls();

    if (!other)
        return true;
    errno = 0;
    say_refused(other, "its mmap() is called in place of this library's: put libnova-hpc-shm.so "
                       "first in LD_PRELOAD");
    return false;
}

static bool join_now(void)
{
    const char *wrong;

    if (!map_device() || !is_first() || !read_part(&self.part))
        return false;
    wrong = take_number(settings.lock, &self.number);
    if (wrong) {
        say_refused(settings.lock, wrong);
        return false;
    }
    if (!enter_directory()) {
        drop_number();
        return false;
    }
    atomic_store(&segment_begin, (uintptr_t)segment.base);
    atomic_store(&segment_end, (uintptr_t)segment.base + segment.bytes);
    write_debug("joined as process %u of part %u", self.number, self.part);
    return true;
}

static bool join_locked(void)
{
    static bool prepared;
    int error = errno;

    if (membership == NOT_TRIED) {
        if (!prepared)
            pthread_atfork(begin_fork, end_fork, begin_child);
        prepared = true;
        membership = join_now() ? JOINED : REFUSED;
    }
    errno = error;
    return membership == JOINED;
}

bool join_segment(void)
{
    bool joined;

    pthread_mutex_lock(&mutex);
    joined = join_locked();
    pthread_mutex_unlock(&mutex);
    return joined;
}

const uint8_t *segment_uuid(void)
{
    return segment.uuid;
}

static bool lock_part(void)
{
    if (lock_server())
        return true;
    write_message("%s: the lock of this server's part is not to be had: %s", settings.lock,
                  strerror(errno));
    return false;
}

/* --- open. ------------------------------------------------------------------------------------ */

static bool find_anywhere(const char *name, struct file_place *place)
{
    for (uint32_t part = 0; part < segment.parts; part++)
        if (find_file(&segment, part, name, place))
            return true;
    return false;
}

static int create_locked(const char *name, int flags, struct file_place *place)
{
    int error;

    if (flags & O_EXCL) {
        if (find_anywhere(name, place))
            return EEXIST;
    } else if (find_file(&segment, self.part, name, place)) {
        return 0;
    }
    error = make_file(&segment, self, name, place);
    if (error) {
        sweep_dead(&segment, self.part, is_number_alive);
        error = make_file(&segment, self, name, place);
    }
    if (error)
        write_message(
            "this server's part has no room for more than %u files: run fewer ranks in it",
            FILES_MAX);
    return error;
}

static int create_file(const char *name, int flags, struct file_place *place)
{
    int error;

    if (!lock_part())
        return ENOLCK;
    error = create_locked(name, flags, place);
    unlock_server();
    return error;
}

int open_file(const char *name, int flags, struct file_place *place)
{
    int error;

    pthread_mutex_lock(&mutex);
    if (flags & O_CREAT)
        error = create_file(name, flags, place);
    else
        error = find_anywhere(name, place) ? 0 : ENOENT;
    pthread_mutex_unlock(&mutex);
    return error;
}

/* --- mmap. ------------------------------------------------------------------------------------ */

static int give_room(struct file_place place, uint64_t length, struct file_range *range)
{
    int error;

    if (!lock_part())
        return ENOLCK;
    error = give_range(&segment, self, place, length, range);
    if (error == ENOSPC) {
        sweep_dead(&segment, self.part, is_number_alive);
        error = give_range(&segment, self, place, length, range);
    }
    unlock_server();
    if (error == ENOSPC)
        write_message("this server's part is full: run fewer ranks in it, or take a flavor with "
                      "more hpc:shared_memory");
    return error;
}

/* The first mapping of a file by its maker gives it memory. No other process can use it until it is
 * published, so it is filled with zeros outside the lock. */
static int fill_file(struct file_place place, uint64_t length)
{
    struct file_range range;
    int error = give_room(place, length, &range);

    if (error)
        return error;
    memset(address_of(&segment, place.part, range), 0, range.length);
    if (!lock_part()) {
        end_use(&segment, self, place);
        return ENOLCK;
    }
    error = publish_file(&segment, self, place) ? 0 : ENOENT;
    unlock_server();
    return error;
}

static bool is_own_and_new(struct file_place place)
{
    return place.part == self.part &&
           atomic_load(&directory_of(&segment, place.part)->files[place.slot].state) == FILE_MADE;
}

static struct mapping *find_mapping(struct file_place place)
{
    for (uint32_t i = 0; i < mappings_count; i++)
        if (mappings[i].place.part == place.part && mappings[i].place.slot == place.slot)
            return &mappings[i];
    return NULL;
}

/* Mapped once more, a file is what it was: its bit has kept its place from being given again. */
static struct mapping *use_file(const char *name, struct file_place place)
{
    struct mapping *mapping = find_mapping(place);
    struct file_range range;

    if (mapping) {
        mapping->times++;
        return mapping;
    }
    if (!begin_use(&segment, self, place, name, &range))
        return NULL;
    mapping = &mappings[mappings_count++]; /* one for each file at most: there is room */
    *mapping = (struct mapping){.place = place, .range = range, .times = 1};
    if (place.part != self.part)
        atomic_fetch_add(&directory_of(&segment, self.part)->peers_mapped, 1);
    return mapping;
}

static void forget_mapping(struct mapping *mapping)
{
    if (--mapping->times > 0)
        return;
    end_use(&segment, self, mapping->place);
    *mapping = mappings[--mappings_count];
}

static void *map_locked(const char *name, struct file_place place, uint64_t length, uint64_t offset)
{
    struct mapping *mapping;

    if (is_own_and_new(place)) {
        errno = offset ? EINVAL : fill_file(place, length);
        if (errno)
            return NULL;
    }
    mapping = use_file(name, place);
    if (!mapping) {
        errno = ENOENT;
        return NULL;
    }
    if (offset > mapping->range.length || length > mapping->range.length - offset) {
        forget_mapping(mapping);
        errno = ENXIO;
        return NULL;
    }
    return address_of(&segment, place.part, mapping->range) + offset;
}

void *map_file(const char *name, struct file_place place, size_t length, uint64_t offset)
{
    uint64_t rounded = (length + RANGE_ALIGNMENT - 1) / RANGE_ALIGNMENT * RANGE_ALIGNMENT;
    void *address;

    if (length == 0 || rounded < length) {
        errno = EINVAL;
        return NULL;
    }
    pthread_mutex_lock(&mutex);
    address = map_locked(name, place, rounded, offset);
    write_debug("file %s of part %u, %zu bytes, in part %u: %p", name, place.part, length,
                self.part, address);
    pthread_mutex_unlock(&mutex);
    return address;
}

/* --- munmap, unlink. -------------------------------------------------------------------------- */

static bool is_within(const struct mapping *mapping, const uint8_t *address)
{
    const uint8_t *begin = address_of(&segment, mapping->place.part, mapping->range);

    return address >= begin && address < begin + mapping->range.length;
}

/* The memory stays mapped as long as the process lives. */
bool unmap_file(void *address)
{
    if ((uintptr_t)address < atomic_load(&segment_begin) ||
        (uintptr_t)address >= atomic_load(&segment_end))
        return false;
    pthread_mutex_lock(&mutex);
    for (uint32_t i = 0; i < mappings_count; i++) {
        if (is_within(&mappings[i], address)) {
            forget_mapping(&mappings[i]);
            break;
        }
    }
    pthread_mutex_unlock(&mutex);
    return true;
}

static int remove_locked(const char *name)
{
    bool removed;

    if (!lock_part())
        return ENOLCK;
    removed = unlink_file(&segment, self.part, name);
    if (removed)
        collect_ranges(&segment, self.part);
    unlock_server();
    return removed ? 0 : ENOENT;
}

int remove_file(const char *name)
{
    int error;

    pthread_mutex_lock(&mutex);
    error = remove_locked(name);
    pthread_mutex_unlock(&mutex);
    return error;
}
