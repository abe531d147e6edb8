/* SPDX-License-Identifier: Apache-2.0 */
/* What directory.h promises, of two or three servers in one process. */
#include <errno.h>

#include "directory.h"
#include "fake_segment.h"

static const char FIRST_BOOT[BOOT_ID_BYTES] = "11111111-1111-1111-1111-111111111111";
static const char SECOND_BOOT[BOOT_ID_BYTES] = "22222222-2222-2222-2222-222222222222";

static struct segment segment;
static bool dies[PROCESSES_MAX + 1];

static bool is_alive(uint32_t number)
{
    return !dies[number];
}

static struct process_place start(uint32_t part, uint32_t number)
{
    struct process_place process = {.part = part, .number = number};

    begin_boot(&segment, part, FIRST_BOOT);
    begin_process(&segment, process);
    sweep_dead(&segment, part, is_alive);
    return process;
}

static void begin_test(uint32_t parts)
{
    memset(dies, 0, sizeof dies);
    segment = make_segment(parts);
}

static void end_test(void)
{
    free(segment.base);
}

static struct file_place make(struct process_place process, const char *name, uint64_t length)
{
    struct file_place place;
    struct file_range range;

    expect(!make_file(&segment, process, name, &place));
    expect(!give_range(&segment, process, place, length, &range));
    expect(range.length == length && is_sane_range(&segment, range));
    expect(publish_file(&segment, process, place));
    return place;
}

static uint64_t held(uint32_t part)
{
    return read_account(&segment, part).held;
}

static void check_ranges_do_not_overlap(void)
{
    struct process_place process;
    struct file_place places[8];
    struct file_range ranges[8];
    char name[NAME_BYTES];

    begin_test(2);
    process = start(0, 1);
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "f%d", i);
        expect(!make_file(&segment, process, name, &places[i]));
        expect(!give_range(&segment, process, places[i], (uint64_t)(i + 1) << 12, &ranges[i]));
        expect(publish_file(&segment, process, places[i]));
        for (int k = 0; k < i; k++)
            expect(ranges[k].offset + ranges[k].length <= ranges[i].offset ||
                   ranges[i].offset + ranges[i].length <= ranges[k].offset);
    }
    expect(held(0) == 36 << 12);
    end_test();
}

static void check_full_part_says_so(void)
{
    struct process_place process;
    struct file_place place;
    struct file_range range;

    begin_test(2);
    process = start(1, 3);
    make(process, "half", (UNIT_BYTES - DIRECTORY_BYTES) / 2);
    make(process, "rest", (UNIT_BYTES - DIRECTORY_BYTES) / 2);
    expect(!make_file(&segment, process, "more", &place));
    expect(give_range(&segment, process, place, 4096, &range) == ENOSPC);
    expect(give_range(&segment, process, place, UINT64_MAX - 4095, &range) == ENOSPC);
    end_test();
}

static void check_all_files_taken(void)
{
    struct process_place process;
    struct file_place place;

    begin_test(2);
    process = start(0, 1);
    for (uint32_t i = 0; i < FILES_MAX; i++)
        expect(!make_file(&segment, process, "x", &place));
    expect(make_file(&segment, process, "x", &place) == ENOSPC);
    end_test();
}

static void check_range_stays_while_a_peer_uses_it(void)
{
    struct process_place maker, peer;
    struct file_place place, found;
    struct file_range range;

    begin_test(2);
    maker = start(0, 1);
    peer = start(1, 1);
    place = make(maker, "f", 8192);
    expect(find_file(&segment, 0, "f", &found) && found.slot == place.slot);
    expect(begin_use(&segment, peer, found, "f", &range) && range.length == 8192);
    end_use(&segment, maker, place);
    expect(unlink_file(&segment, 0, "f"));
    expect(!find_file(&segment, 0, "f", &found));
    collect_ranges(&segment, 0);
    expect(held(0) == 8192);
    expect(!begin_use(&segment, peer, place, "f", &range)); /* gone: none begins a new use */
    end_test();
}

static void check_range_comes_back_when_all_have_let_it_go(void)
{
    struct process_place maker, peer;
    struct file_place place;
    struct file_range range;

    begin_test(2);
    maker = start(0, 1);
    peer = start(1, 1);
    place = make(maker, "f", 8192);
    expect(begin_use(&segment, peer, place, "f", &range));
    end_use(&segment, maker, place);
    expect(unlink_file(&segment, 0, "f"));
    end_use(&segment, peer, place);
    expect(held(0) == 0);
    collect_ranges(&segment, 0);
    expect(atomic_load(&directory_of(&segment, 0)->files[place.slot].state) == FILE_FREE);
    end_test();
}

static void check_dead_maker_leaves_nothing(void)
{
    begin_test(2);
    make(start(0, 1), "f", 8192);
    make(start(0, 2), "g", 4096);
    dies[1] = true;
    start(0, 3);
    expect(held(0) == 4096);
    end_test();
}

static void check_number_taken_again(void)
{
    struct file_place place;

    begin_test(2);
    make(start(0, 1), "f", 8192);
    start(0, 1); /* the kernel has given its number to another: it is dead */
    expect(!find_file(&segment, 0, "f", &place));
    expect(held(0) == 0);
    end_test();
}

static void check_dead_peer_holds_until_its_server_starts_again(void)
{
    struct process_place maker, peer;
    struct file_place place;
    struct file_range range;

    begin_test(2);
    maker = start(0, 1);
    peer = start(1, 1);
    place = make(maker, "f", 8192);
    expect(begin_use(&segment, peer, place, "f", &range));
    dies[1] = true; /* both are killed */
    start(0, 2);
    expect(held(0) == 8192);
    begin_boot(&segment, 1, SECOND_BOOT);
    expect(held(0) == 0);
    end_test();
}

static void check_server_without_a_name_holds_nothing(void)
{
    struct process_place maker, peer;
    struct file_place place;
    struct file_range range;

    begin_test(3);
    maker = start(0, 1);
    peer = start(2, 1);
    place = make(maker, "f", 8192);
    expect(begin_use(&segment, peer, place, "f", &range));
    dies[1] = true;
    start(0, 2);
    expect(held(0) == 8192);
    memset(segment.base + OWNERS_AT + 2 * OWNER_BYTES, 0, OWNER_BYTES); /* as the host does */
    expect(held(0) == 0);
    end_test();
}

static void check_new_boot_buries_all_of_the_last(void)
{
    struct process_place process;
    struct file_place place;

    begin_test(2);
    process = start(0, 1);
    make(process, "f", 8192);
    make(process, "g", 8192);
    begin_boot(&segment, 0, SECOND_BOOT);
    expect(!find_file(&segment, 0, "f", &place));
    expect(held(0) == 0);
    expect(read_account(&segment, 0).live == 0 && read_account(&segment, 0).files_made == 0);
    end_test();
}

static void check_file_of_another_layout_is_not_seen(void)
{
    struct file_place place;

    begin_test(2);
    make(start(0, 1), "f", 8192);
    atomic_store(&directory_of(&segment, 0)->layout, DIRECTORY_LAYOUT + 1);
    expect(!find_file(&segment, 0, "f", &place));
    start(0, 2); /* and a server with this one begins anew */
    expect(held(0) == 0);
    end_test();
}

static void check_file_is_not_used_before_it_is_published(void)
{
    struct process_place maker, peer;
    struct file_place place;
    struct file_range range;

    begin_test(2);
    maker = start(0, 1);
    peer = start(1, 1);
    expect(!make_file(&segment, maker, "f", &place));
    expect(!begin_use(&segment, peer, place, "f", &range));
    expect(!give_range(&segment, maker, place, 4096, &range));
    expect(!begin_use(&segment, peer, place, "f", &range));
    expect(publish_file(&segment, maker, place));
    expect(begin_use(&segment, peer, place, "f", &range));
    expect(!begin_use(&segment, peer, place, "g", &range)); /* another file has the place now */
    end_test();
}

static void check_damaged_entries_are_given_back(void)
{
    struct process_place process;
    struct part_directory *directory;
    struct file_place place;
    struct file_range range;

    begin_test(2);
    process = start(0, 1);
    place = make(process, "f", 8192);
    directory = directory_of(&segment, 0);
    atomic_store(&directory->files[place.slot].offset, 1ull << 60);
    expect(!begin_use(&segment, process, place, "f", &range));
    atomic_store(&directory->files[7].state, 77);
    collect_ranges(&segment, 0);
    expect(held(0) == 0);
    expect(atomic_load(&directory->files[place.slot].state) == FILE_FREE);
    expect(atomic_load(&directory->files[7].state) == FILE_FREE);
    end_test();
}

static void check_heads(void)
{
    const struct segment_head right = {.magic = SEGMENT_MAGIC,
                                       .version = SEGMENT_VERSION,
                                       .parts = 4,
                                       .part_bytes = 2 * UNIT_BYTES,
                                       .bytes = 9 * UNIT_BYTES};
    struct segment_head head = right;

    expect(!check_head(&head, 9 * UNIT_BYTES));
    expect(check_head(&head, 9 * UNIT_BYTES - 1));
    head.magic++;
    expect(check_head(&head, UINT64_MAX));
    head = right, head.version = 2;
    expect(strstr(check_head(&head, UINT64_MAX), "newer"));
    head = right, head.parts = 17, head.bytes = UNIT_BYTES + 17 * head.part_bytes;
    expect(check_head(&head, UINT64_MAX));
    head = right, head.parts = 1, head.bytes = 3 * UNIT_BYTES;
    expect(check_head(&head, UINT64_MAX));
    head = right, head.part_bytes = 1ull << 62, head.bytes = UNIT_BYTES; /* 4 * 2^62 is 0 */
    expect(check_head(&head, UINT64_MAX));
    head = right, head.part_bytes++, head.bytes += 4;
    expect(check_head(&head, UINT64_MAX));
    head = right, head.bytes -= UNIT_BYTES;
    expect(check_head(&head, UINT64_MAX));
}

int main(void)
{
    check_ranges_do_not_overlap();
    check_full_part_says_so();
    check_all_files_taken();
    check_range_stays_while_a_peer_uses_it();
    check_range_comes_back_when_all_have_let_it_go();
    check_dead_maker_leaves_nothing();
    check_number_taken_again();
    check_dead_peer_holds_until_its_server_starts_again();
    check_server_without_a_name_holds_nothing();
    check_new_boot_buries_all_of_the_last();
    check_file_of_another_layout_is_not_seen();
    check_file_is_not_used_before_it_is_published();
    check_damaged_entries_are_given_back();
    check_heads();
    printf("directory: 14 checks hold\n");
    return 0;
}
