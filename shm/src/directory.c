/* SPDX-License-Identifier: Apache-2.0 */
#include "directory.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

/* An entry as it was read once. */
struct file_copy {
    char name[NAME_BYTES];
    struct file_range range;
    uint32_t process;
    uint32_t state;
};

static struct file_entry *entry_at(const struct segment *segment, struct file_place place)
{
    return &directory_of(segment, place.part)->files[place.slot];
}

static struct process_entry *process_at(const struct segment *segment, struct process_place process)
{
    return &directory_of(segment, process.part)->processes[process.number - 1];
}

static struct file_copy copy_file(const struct segment *segment, struct file_place place)
{
    struct file_entry *entry = entry_at(segment, place);
    struct file_copy copy;

    /* First: what follows was written before it. */
    copy.state = atomic_load_explicit(&entry->state, memory_order_acquire);
    copy_shared(copy.name, entry->name, sizeof copy.name);
    copy.name[NAME_BYTES - 1] = 0;
    copy.range.offset = atomic_load_explicit(&entry->offset, memory_order_relaxed);
    copy.range.length = atomic_load_explicit(&entry->length, memory_order_relaxed);
    copy.process = atomic_load_explicit(&entry->process, memory_order_relaxed);
    return copy;
}

bool is_sane_range(const struct segment *segment, struct file_range range)
{
    return range.offset >= DIRECTORY_BYTES && range.offset % RANGE_ALIGNMENT == 0 &&
           range.length > 0 && range.length % RANGE_ALIGNMENT == 0 &&
           range.offset <= segment->part_bytes &&
           range.length <= segment->part_bytes - range.offset;
}

uint8_t *address_of(const struct segment *segment, uint32_t part, struct file_range range)
{
    return (uint8_t *)directory_of(segment, part) + range.offset;
}

static bool has_our_layout(const struct segment *segment, uint32_t part)
{
    return atomic_load(&directory_of(segment, part)->layout) == DIRECTORY_LAYOUT;
}

bool find_file(const struct segment *segment, uint32_t part, const char *name,
               struct file_place *place)
{
    if (!has_our_layout(segment, part))
        return false;
    for (uint32_t slot = 0; slot < FILES_MAX; slot++) {
        struct file_place here = {.part = part, .slot = slot};
        uint32_t state =
            atomic_load_explicit(&entry_at(segment, here)->state, memory_order_relaxed);
        struct file_copy file;

        if (state != FILE_MADE && state != FILE_MAPPED)
            continue; /* most: not copied */
        file = copy_file(segment, here);
        if ((file.state == FILE_MADE || file.state == FILE_MAPPED) && !strcmp(file.name, name)) {
            *place = here;
            return true;
        }
    }
    return false;
}

/* --- Uses. ------------------------------------------------------------------------------------ */

static uint64_t bit_of(uint32_t slot)
{
    return 1ull << (slot % 64);
}

static void set_use(const struct segment *segment, struct process_place process,
                    struct file_place place)
{
    atomic_fetch_or(&process_at(segment, process)->uses[place.part][place.slot / 64],
                    bit_of(place.slot));
}

void end_use(const struct segment *segment, struct process_place process, struct file_place place)
{
    atomic_fetch_and(&process_at(segment, process)->uses[place.part][place.slot / 64],
                     ~bit_of(place.slot));
}

bool begin_use(const struct segment *segment, struct process_place process, struct file_place place,
               const char *name, struct file_range *range)
{
    struct file_copy file;

    set_use(segment, process, place);
    atomic_thread_fence(memory_order_seq_cst); /* said first, looked at again then: directory.h */
    file = copy_file(segment, place);
    if (file.state == FILE_MAPPED && !strcmp(file.name, name) &&
        is_sane_range(segment, file.range)) {
        *range = file.range;
        return true;
    }
    end_use(segment, process, place);
    return false;
}

static void clear_uses(struct process_entry *process)
{
    for (uint32_t part = 0; part < PARTS_MAX; part++)
        for (uint32_t word = 0; word < USE_WORDS; word++)
            atomic_store_explicit(&process->uses[part][word], 0, memory_order_relaxed);
}

static void add_uses(const struct segment *segment, uint32_t user, uint32_t part,
                     uint64_t used[USE_WORDS])
{
    struct part_directory *directory = directory_of(segment, user);

    for (uint32_t number = 1; number <= PROCESSES_MAX; number++) {
        struct process_entry *process = &directory->processes[number - 1];

        if (!atomic_load(&process->live))
            continue;
        for (uint32_t word = 0; word < USE_WORDS; word++)
            used[word] |= atomic_load(&process->uses[part][word]);
    }
}

/* Which files of *part* any server has mapped. */
static void read_uses(const struct segment *segment, uint32_t part, uint64_t used[USE_WORDS])
{
    char owner[OWNER_BYTES + 1];

    memset(used, 0, USE_WORDS * sizeof *used);
    for (uint32_t user = 0; user < segment->parts; user++) {
        /* A server that is gone for good buries its own dead no more; the host has taken its name
         * away. One of another layout maps none of our files. */
        if (user != part && (!read_owner(segment, user, owner) || !has_our_layout(segment, user)))
            continue;
        add_uses(segment, user, part, used);
    }
}

/* --- The own part. ---------------------------------------------------------------------------- */

static void mark_gone(const struct segment *segment, uint32_t part, bool (*is_dead)(uint32_t))
{
    for (uint32_t slot = 0; slot < FILES_MAX; slot++) {
        struct file_place place = {.part = part, .slot = slot};
        struct file_entry *entry = entry_at(segment, place);
        struct file_copy file = copy_file(segment, place);

        if (file.state != FILE_FREE && is_dead(file.process))
            atomic_store(&entry->state, FILE_GONE);
    }
}

static bool is_any(uint32_t number)
{
    (void)number;
    return true;
}

void begin_boot(const struct segment *segment, uint32_t part, const char boot_id[BOOT_ID_BYTES])
{
    struct part_directory *directory = directory_of(segment, part);
    char last[BOOT_ID_BYTES];

    copy_shared(last, directory->boot_id, sizeof last);
    if (has_our_layout(segment, part) && !memcmp(last, boot_id, sizeof last))
        return;
    if (!has_our_layout(segment, part)) {
        /* Nothing, or what another layout or an enemy wrote: no server of ours has any of it. */
        memset(directory->files, 0, sizeof directory->files);
    }
    mark_gone(segment, part, is_any);
    for (uint32_t number = 1; number <= PROCESSES_MAX; number++) {
        atomic_store(&directory->processes[number - 1].live, 0);
        clear_uses(&directory->processes[number - 1]);
    }
    atomic_store(&directory->files_made, 0);
    atomic_store(&directory->peers_mapped, 0);
    memcpy(directory->boot_id, boot_id, sizeof directory->boot_id);
    atomic_store(&directory->layout, DIRECTORY_LAYOUT);
}

static uint32_t beginner; /* the argument of is_beginner; under the lock */

static bool is_beginner(uint32_t number)
{
    return number == beginner;
}

void begin_process(const struct segment *segment, struct process_place process)
{
    struct process_entry *entry = process_at(segment, process);

    clear_uses(entry);
    atomic_store(&entry->live, 1);
    beginner = process.number;
    mark_gone(segment, process.part, is_beginner);
}

static bool dead[PROCESSES_MAX + 1]; /* of the sweep that runs; under the lock */

static bool is_dead(uint32_t number)
{
    return number < 1 || number > PROCESSES_MAX || dead[number];
}

void sweep_dead(const struct segment *segment, uint32_t part, bool (*is_alive)(uint32_t number))
{
    struct part_directory *directory = directory_of(segment, part);

    for (uint32_t number = 1; number <= PROCESSES_MAX; number++) {
        struct process_entry *process = &directory->processes[number - 1];

        /* One that takes a number just now is no maker of what the last one left. It waits for the
         * lock, and buries that itself. */
        dead[number] = !atomic_load(&process->live) || !is_alive(number);
        if (dead[number] && atomic_load(&process->live)) {
            atomic_store(&process->live, 0);
            clear_uses(process);
        }
    }
    mark_gone(segment, part, is_dead);
    collect_ranges(segment, part);
}

void collect_ranges(const struct segment *segment, uint32_t part)
{
    uint64_t used[USE_WORDS];

    atomic_thread_fence(memory_order_seq_cst); /* gone is said; now who uses it: directory.h */
    read_uses(segment, part, used);
    for (uint32_t slot = 0; slot < FILES_MAX; slot++) {
        struct file_place place = {.part = part, .slot = slot};
        struct file_copy file = copy_file(segment, place);
        bool damaged = file.state > FILE_GONE ||
                       (file.state == FILE_MAPPED && !is_sane_range(segment, file.range));

        if (damaged || (file.state == FILE_GONE && !(used[slot / 64] & bit_of(slot))))
            atomic_store(&entry_at(segment, place)->state, FILE_FREE);
    }
}

int make_file(const struct segment *segment, struct process_place process, const char *name,
              struct file_place *place)
{
    for (uint32_t slot = 0; slot < FILES_MAX; slot++) {
        struct file_place here = {.part = process.part, .slot = slot};
        struct file_entry *entry = entry_at(segment, here);
        size_t length = strnlen(name, NAME_BYTES - 1);

        if (atomic_load(&entry->state) != FILE_FREE)
            continue;
        memset(entry->name, 0, sizeof entry->name);
        memcpy(entry->name, name, length);
        atomic_store(&entry->offset, 0);
        atomic_store(&entry->length, 0);
        atomic_store(&entry->process, process.number);
        atomic_store(&entry->state, FILE_MADE);
        atomic_fetch_add(&directory_of(segment, process.part)->files_made, 1);
        *place = here;
        return 0;
    }
    return ENOSPC;
}

/* Read what is taken of a part, into *taken*: how many ranges. */
static uint32_t read_taken(const struct segment *segment, uint32_t part,
                           struct file_range taken[FILES_MAX])
{
    uint32_t count = 0;

    for (uint32_t slot = 0; slot < FILES_MAX; slot++) {
        struct file_copy file = copy_file(segment, (struct file_place){.part = part, .slot = slot});

        if (file.state != FILE_FREE && is_sane_range(segment, file.range))
            taken[count++] = file.range;
    }
    return count;
}

/* First fit. It ends: each round moves the offset on, and the part has an end. */
static bool find_room(const struct segment *segment, uint32_t part, struct file_range *wanted)
{
    static struct file_range taken[FILES_MAX]; /* under the lock */
    uint32_t count = read_taken(segment, part, taken);
    bool moved = true;

    wanted->offset = DIRECTORY_BYTES;
    while (moved) {
        moved = false;
        if (!is_sane_range(segment, *wanted))
            return false;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t end = taken[i].offset + taken[i].length;

            if (wanted->offset < end && taken[i].offset < wanted->offset + wanted->length) {
                wanted->offset = end;
                moved = true;
            }
        }
    }
    return true;
}

static bool is_being_made_by(const struct file_copy *file, struct process_place process)
{
    return file->state == FILE_MADE && file->process == process.number;
}

int give_range(const struct segment *segment, struct process_place process, struct file_place place,
               uint64_t length, struct file_range *range)
{
    struct file_entry *entry = entry_at(segment, place);
    struct file_copy file = copy_file(segment, place);
    struct file_range wanted = {.length = length};

    if (place.part != process.part || !is_being_made_by(&file, process))
        return ENOENT;
    if (!find_room(segment, process.part, &wanted))
        return ENOSPC;
    set_use(segment, process, place);
    atomic_store(&entry->offset, wanted.offset);
    atomic_store(&entry->length, wanted.length);
    *range = wanted;
    return 0;
}

bool publish_file(const struct segment *segment, struct process_place process,
                  struct file_place place)
{
    struct file_copy file = copy_file(segment, place);

    if (!is_being_made_by(&file, process)) {
        end_use(segment, process, place);
        return false;
    }
    atomic_store(&entry_at(segment, place)->state, FILE_MAPPED);
    return true;
}

bool unlink_file(const struct segment *segment, uint32_t part, const char *name)
{
    struct file_place place;

    if (!find_file(segment, part, name, &place))
        return false;
    atomic_store(&entry_at(segment, place)->state, FILE_GONE);
    return true;
}

/* --- To look at. ------------------------------------------------------------------------------ */

static void count_files(const struct segment *segment, uint32_t part, struct part_account *account)
{
    uint64_t used[USE_WORDS];

    read_uses(segment, part, used);
    for (uint32_t slot = 0; slot < FILES_MAX; slot++) {
        struct file_copy file = copy_file(segment, (struct file_place){.part = part, .slot = slot});
        bool unused = file.state == FILE_GONE && !(used[slot / 64] & bit_of(slot));

        if (file.state == FILE_FREE || unused || !is_sane_range(segment, file.range))
            continue;
        account->files += file.state == FILE_MAPPED;
        account->held += file.range.length;
    }
}

static void count_processes(const struct segment *segment, uint32_t part,
                            struct part_account *account)
{
    struct part_directory *directory = directory_of(segment, part);

    for (uint32_t number = 1; number <= PROCESSES_MAX; number++) {
        struct process_entry *process = &directory->processes[number - 1];

        if (!atomic_load(&process->live))
            continue;
        account->live++;
        for (uint32_t other = 0; other < segment->parts; other++)
            for (uint32_t word = 0; word < USE_WORDS && other != part; word++)
                account->peer_files +=
                    (uint32_t)__builtin_popcountll(atomic_load(&process->uses[other][word]));
    }
}

struct part_account read_account(const struct segment *segment, uint32_t part)
{
    struct part_directory *directory = directory_of(segment, part);
    struct part_account account = {.begun = has_our_layout(segment, part)};

    if (!account.begun)
        return account;
    copy_shared(account.boot_id, directory->boot_id, sizeof account.boot_id);
    account.boot_id[BOOT_ID_BYTES - 1] = 0;
    account.files_made = atomic_load(&directory->files_made);
    account.peers_mapped = atomic_load(&directory->peers_mapped);
    count_files(segment, part, &account);
    count_processes(segment, part, &account);
    return account;
}
