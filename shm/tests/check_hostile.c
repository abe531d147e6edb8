/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of an enemy in the whole memory, also while it is read: whatever lies there, each function
 * ends, touches nothing outside (the sanitizers see it), and gives ranges inside the part alone.
 *
 *   check-hostile [ROUNDS [SEED]] */
#include <pthread.h>

#include "directory.h"
#include "fake_segment.h"

#define PARTS 3u

static struct segment segment;
static _Atomic bool ended;

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* A value that is likely to hurt: near a limit, or any. */
static uint64_t draw_value(uint64_t *state)
{
    static const uint64_t sharp[] = {0,          1,          2,          3,
                                     4,          4095,       4096,       DIRECTORY_BYTES,
                                     FILES_MAX,  1u << 31,   UINT32_MAX, UNIT_BYTES,
                                     1ull << 32, 1ull << 63, UINT64_MAX, UINT64_MAX - 4095};
    uint64_t value = sharp[draw(state) % (sizeof sharp / sizeof *sharp)];

    switch (draw(state) % 4) {
    case 0: return draw(state);
    case 1: return value + draw(state) % 3 - 1;
    case 2: return draw(state) % (2 * UNIT_BYTES) / 4096 * 4096;
    default: return value;
    }
}

/* One word somewhere: in files, whose words matter most, or anywhere. */
static void spoil_word(uint64_t *state)
{
    struct part_directory *directory = directory_of(&segment, (uint32_t)(draw(state) % PARTS));
    struct file_entry *file = &directory->files[draw(state) % 64];

    switch (draw(state) % 8) {
    case 0: atomic_store(&file->offset, draw_value(state)); break;
    case 1: atomic_store(&file->length, draw_value(state)); break;
    case 2: atomic_store(&file->state, (uint32_t)(draw(state) % 6)); break;
    case 3: atomic_store(&file->process, (uint32_t)draw_value(state)); break;
    case 4: *(volatile char *)&file->name[draw(state) % NAME_BYTES] = (char)draw(state); break;
    case 5: atomic_store(&directory->processes[draw(state) % PROCESSES_MAX].live, 1); break;
    case 6: atomic_store(&directory->layout, (uint32_t)(draw(state) % 3)); break;
    default:
        *(volatile uint8_t *)(segment.base + draw(state) % segment.bytes) = (uint8_t)draw(state);
    }
}

static void *spoil_on(void *seed)
{
    uint64_t state = *(uint64_t *)seed;

    while (!atomic_load(&ended))
        spoil_word(&state);
    return NULL;
}

static void fill_range_with_noise(uint64_t *state, void *range, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t value = draw(state) % 3 ? draw_value(state) : 0;

        memcpy((uint8_t *)range + at, &value, 8);
    }
}

/* Entries that are nearly right, each wrong in a place or two: noise is hardly ever so near. */
static void fill_files_nearly_right(uint64_t *state, struct part_directory *directory)
{
    const uint64_t edges[] = {DIRECTORY_BYTES, segment.part_bytes, 1ull << 32, 0};

    for (uint32_t slot = 0; slot < FILES_MAX; slot++) {
        struct file_entry *file = &directory->files[slot];
        uint64_t edge = edges[draw(state) % (sizeof edges / sizeof *edges)];
        uint64_t near = edge + (draw(state) % 5 - 2) * RANGE_ALIGNMENT;
        char name[NAME_BYTES];

        if (draw(state) % 8 == 0)
            near += draw(state) % 3 - 1;
        memset(name, 'f', sizeof name);
        if (draw(state) % 8)
            snprintf(name, sizeof name, "f%u", (unsigned int)(draw(state) % 8));
        memcpy(file->name, name, sizeof name);
        atomic_store(&file->offset, near);
        atomic_store(&file->length, draw(state) % 4 ? (draw(state) % 4) * RANGE_ALIGNMENT : near);
        atomic_store(&file->process, (uint32_t)(draw(state) % (PROCESSES_MAX + 3)) - 1);
        atomic_store(&file->state, (uint32_t)(draw(state) % 5));
    }
}

/* The head, the owners and all directories. What is in files is read by none of the functions. */
static void fill_with_noise(uint64_t *state)
{
    fill_range_with_noise(state, segment.base, OWNERS_AT + PARTS * OWNER_BYTES);
    for (uint32_t part = 0; part < PARTS; part++) {
        struct part_directory *directory = directory_of(&segment, part);

        fill_range_with_noise(state, directory, DIRECTORY_BYTES);
        if (draw(state) % 2)
            fill_files_nearly_right(state, directory);
        atomic_store(&directory->layout, DIRECTORY_LAYOUT);
    }
}

static bool is_alive(uint32_t number)
{
    expect(number >= 1 && number <= PROCESSES_MAX);
    return number % 3;
}

static void expect_inside(struct file_range range)
{
    expect(range.offset >= DIRECTORY_BYTES && range.length <= segment.part_bytes &&
           range.offset <= segment.part_bytes - range.length);
    expect(range.length > 0 && range.offset % RANGE_ALIGNMENT == 0 &&
           range.length % RANGE_ALIGNMENT == 0);
}

static void use_files(uint64_t *state, struct process_place process)
{
    char name[NAME_BYTES];
    struct file_place place;
    struct file_range range;

    snprintf(name, sizeof name, "f%u", (unsigned int)(draw(state) % 8));
    if (!make_file(&segment, process, name, &place) &&
        !give_range(&segment, process, place, (1 + draw(state) % 64) << 12, &range)) {
        expect_inside(range);
        memset(address_of(&segment, place.part, range), 0, range.length);
        publish_file(&segment, process, place);
    }
    for (uint32_t part = 0; part < PARTS; part++) {
        if (find_file(&segment, part, name, &place) &&
            begin_use(&segment, process, place, name, &range)) {
            expect_inside(range);
            *(volatile uint8_t *)(address_of(&segment, part, range) + range.length - 1) = 1;
            end_use(&segment, process, place);
        }
        place = (struct file_place){.part = part, .slot = (uint32_t)(draw(state) % 64)};
        if (begin_use(&segment, process, place, name, &range))
            expect_inside(range);
    }
    unlink_file(&segment, process.part, name);
}

/* Nothing is left that nobody would ever end: only what a live process has is made or mapped. */
static void expect_swept(uint32_t part)
{
    struct part_directory *directory = directory_of(&segment, part);

    for (uint32_t slot = 0; slot < FILES_MAX; slot++) {
        uint32_t number = atomic_load(&directory->files[slot].process);
        uint32_t file_state = atomic_load(&directory->files[slot].state);

        expect(file_state <= FILE_GONE);
        expect(file_state == FILE_FREE || file_state == FILE_GONE ||
               (number >= 1 && number <= PROCESSES_MAX && is_alive(number)));
    }
}

static void run_round(uint64_t *state, bool alone)
{
    struct process_place process = {.part = (uint32_t)(draw(state) % PARTS),
                                    .number = 1 + (uint32_t)(draw(state) % PROCESSES_MAX)};
    char boot_id[BOOT_ID_BYTES] = "one boot", owner[OWNER_BYTES + 1];
    struct part_account account;

    if (draw(state) % 2)
        begin_boot(&segment, process.part, boot_id);
    begin_process(&segment, process);
    for (int i = 0; i < 8; i++)
        use_files(state, process);
    sweep_dead(&segment, process.part, is_alive);
    if (alone)
        expect_swept(process.part);
    account = read_account(&segment, process.part);
    expect(account.held <= FILES_MAX * segment.part_bytes);
    expect(account.live <= PROCESSES_MAX && account.files <= FILES_MAX);
    read_owner(&segment, process.part, owner);
    expect(strlen(owner) <= OWNER_BYTES);
}

static void check_head_of_noise(uint64_t *state)
{
    struct segment_head head = {.magic = SEGMENT_MAGIC, .version = SEGMENT_VERSION};
    uint64_t bytes = draw_value(state);

    head.parts = (uint32_t)draw_value(state);
    head.part_bytes = draw_value(state);
    head.bytes = draw(state) % 2 ? draw_value(state) : UNIT_BYTES + head.parts * head.part_bytes;
    if (check_head(&head, bytes))
        return;
    expect(head.bytes <= bytes && head.parts <= PARTS_MAX);
    expect((bytes - UNIT_BYTES) / head.parts >= head.part_bytes);
}

int main(int count, char **words)
{
    unsigned long rounds = count > 1 ? strtoul(words[1], NULL, 10) : 40;
    uint64_t state =
        (count > 2 ? strtoul(words[2], NULL, 10) : 1) * 2654435761u + 88172645463325252;
    uint64_t seed = state ^ 0x5555;
    pthread_t enemy;

    segment = make_segment(PARTS);
    for (int i = 0; i < 100000; i++)
        check_head_of_noise(&state);
    for (unsigned long i = 0; i < rounds; i++) { /* the same bytes for the same seed */
        fill_with_noise(&state);
        run_round(&state, true);
    }
    expect(!pthread_create(&enemy, NULL, spoil_on, &seed));
    for (unsigned long i = 0; i < rounds; i++)
        run_round(&state, false);
    atomic_store(&ended, true);
    pthread_join(enemy, NULL);
    printf("hostile: %lu rounds of noise, %lu beside an enemy\n", rounds, rounds);
    free(segment.base);
    return 0;
}
