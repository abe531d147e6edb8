/* SPDX-License-Identifier: Apache-2.0 */
/* nova-hpc-shm-stat [--json] [DEVICE]: what each part of a shared memory holds. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "directory.h"
#include "real_calls.h"
#include "segment.h"

#define USAGE "usage: nova-hpc-shm-stat [--json] [DEVICE]\n"
#define DEVICE "/dev/nova-hpc-shared"
#define TITLES                                                                                     \
    "part  server                                processes  files    held KiB  peer files  "       \
    "files made  peers mapped\n"

/* Any server may have written it: what is in no UUID becomes a question mark. */
static void clean_text(char *text)
{
    for (; *text; text++)
        if (!strchr("0123456789abcdefABCDEF-", *text))
            *text = '?';
}

static void format_uuid(const uint8_t uuid[16], char text[37])
{
    char *to = text;

    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *to++ = '-';
        to += sprintf(to, "%02x", uuid[i]);
    }
}

static void print_part(const struct segment *segment, uint32_t part, bool json)
{
    struct part_account account = read_account(segment, part);
    char owner[OWNER_BYTES + 1];

    read_owner(segment, part, owner);
    clean_text(owner);
    clean_text(account.boot_id);
    if (json)
        printf("%s{\"part\": %u, \"owner\": \"%s\", \"boot_id\": \"%s\", \"live\": %u, "
               "\"files\": %u, \"held\": %" PRIu64 ", \"peer_files\": %" PRIu64
               ", \"files_made\": %" PRIu64 ", \"peers_mapped\": %" PRIu64 "}",
               part ? ", " : "", part, owner, account.boot_id, account.live, account.files,
               account.held, account.peer_files, account.files_made, account.peers_mapped);
    else
        printf("%4u  %-36s  %9u  %5u  %10" PRIu64 "  %10" PRIu64 "  %10" PRIu64 "  %12" PRIu64 "\n",
               part, *owner ? owner : "-", account.live, account.files, account.held >> 10,
               account.peer_files, account.files_made, account.peers_mapped);
}

static void print_segment(const struct segment *segment, bool json)
{
    char uuid[37];

    format_uuid(segment->uuid, uuid);
    if (json)
        printf("{\"uuid\": \"%s\", \"part_bytes\": %" PRIu64 ", \"parts\": [", uuid,
               segment->part_bytes);
    else
        printf("memory %s: %u parts of %" PRIu64 " MiB\n" TITLES, uuid, segment->parts,
               segment->part_bytes >> 20);
    for (uint32_t part = 0; part < segment->parts; part++)
        print_part(segment, part, json);
    if (json)
        printf("]}\n");
}

int main(int count, char **words)
{
    bool json = count > 1 && !strcmp(words[1], "--json");
    const char *path = count > 1 + json ? words[1 + json] : DEVICE;
    struct segment segment = {0};
    const char *wrong;

    if (count > 2 + json || path[0] == '-') {
        fputs(USAGE, stderr);
        return 2;
    }
    find_real_calls();
    wrong = map_segment(path, false, &segment);
    if (wrong) {
        fprintf(stderr, "nova-hpc-shm-stat: %s: %s%s%s\n", path, wrong, errno ? ": " : "",
                errno ? strerror(errno) : "");
        return 1;
    }
    print_segment(&segment, json);
    return fflush(stdout) ? 1 : 0;
}
