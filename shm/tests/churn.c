/* SPDX-License-Identifier: Apache-2.0 */
/* churn SERVER COUNT [SEED]: makes, maps and unlinks files as fast as it can and maps those of the
 * other churns. All words of a file are the file's own mark, or zero before its maker has written
 * them: a range that is given to a second file while a process still uses it shows by another mark.
 * Killed at any moment; those that live must never see one. */
#include "use_files.h"

#define OWN 4
#define SEEN 6
#define CHURNS 8 /* known by their numbers */

struct view {
    uint64_t *words;
    size_t bytes;
    uint64_t mark;
    char name[40];
};

static uint64_t state;

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t mark_of(const char *name)
{
    uint64_t mark = 14695981039346656037ull;

    for (; *name; name++)
        mark = (mark ^ (uint8_t)*name) * 1099511628211ull;
    return mark | 1;
}

static void check_view(const struct view *view)
{
    for (size_t i = 0; i < view->bytes / 8; i += 64) {
        uint64_t word = *(volatile uint64_t *)&view->words[i];

        if (word != 0 && word != view->mark) {
            printf("%s: a word of another file at %zu\n", view->name, i);
            exit(1);
        }
    }
}

static void drop_view(struct view *view)
{
    if (!view->words)
        return;
    check_view(view);
    munmap(view->words, view->bytes);
    view->words = NULL;
}

/* Sizes follow from the name, so that others know them. */
static void map_view(struct view *view, int server, uint64_t number, int flags)
{
    snprintf(view->name, sizeof view->name, "c%d.%llu", server, (unsigned long long)number);
    view->mark = mark_of(view->name);
    view->bytes = 4096 * (1 + view->mark / 64 % 20);
    view->words = map_name(view->name, flags, view->bytes);
}

static void make_own(struct view *view, int server, uint64_t number)
{
    if (view->words)
        unlink_name(view->name);
    drop_view(view);
    map_view(view, server, number, O_CREAT | O_EXCL);
    if (!view->words)
        return; /* one of its last life, or no room */
    for (size_t i = 0; i < view->bytes / 8; i++) {
        expect(view->words[i] == 0);
        view->words[i] = view->mark;
    }
}

int main(int count, char **words)
{
    struct view own[OWN] = {0}, seen[SEEN] = {0};
    int server = count > 2 ? atoi(words[1]) : 0;
    long rounds = count > 2 ? atol(words[2]) : 1;
    long looked = 0;

    state = (count > 3 ? strtoull(words[3], NULL, 10) : 1) * 2654435761u + 88172645463325252ull;
    for (long round = 0; round < rounds; round++) {
        struct view *view = &seen[draw() % SEEN];

        make_own(&own[draw() % OWN], server, draw() % 16);
        drop_view(view);
        map_view(view, (int)(draw() % CHURNS), draw() % 16, 0);
        looked += view->words != NULL;
        for (int i = 0; i < SEEN; i++)
            if (seen[i].words)
                check_view(&seen[i]);
    }
    for (int i = 0; i < OWN; i++) {
        if (own[i].words)
            unlink_name(own[i].name);
        drop_view(&own[i]);
    }
    printf("%ld files of others seen\n", looked);
    return 0;
}
