/* SPDX-License-Identifier: Apache-2.0 */
#include "answers.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "membership.h"

#define PROC "/proc/"
#define BOOT_ID "/proc/sys/kernel/random/boot_id"

bool is_ucx(const void *caller)
{
    Dl_info where;
    const char *slash;

    if (!dladdr(caller, &where) || !where.dli_fname)
        return false;
    slash = strrchr(where.dli_fname, '/');
    return !strncmp(slash ? slash + 1 : where.dli_fname, "libucs", 6);
}

static int open_text(const char *text)
{
    int fd = memfd_create("nova-hpc-shm", MFD_CLOEXEC);
    size_t length = strlen(text);

    if (fd < 0)
        return -1;
    if (write(fd, text, length) == (ssize_t)length && lseek(fd, 0, SEEK_SET) == 0)
        return fd;
    close(fd);
    return -1;
}

/* UCX compares it to see whether a peer is on the same machine: for this, the same memory is. A
 * server with another layout of directories is not there. */
static int open_boot_id(void)
{
    const uint8_t *u = segment_uuid();
    char text[40];

    snprintf(text, sizeof text,
             "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x\n", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
             u[15] ^ (DIRECTORY_LAYOUT - 1));
    return open_text(text);
}

/* UCX looks whether a peer lives, by a PID that is another process's here, or none's: by the time
 * at which it began, the 22nd field. The same for all, at both ends. */
static int open_stat(int pid)
{
    char text[128];

    snprintf(text, sizeof text, "%d (peer) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0\n",
             pid);
    return open_text(text);
}

int open_answer(const char *path)
{
    int pid, end = 0;

    if (strncmp(path, PROC, sizeof PROC - 1))
        return -1;
    if (!strcmp(path, BOOT_ID))
        return join_segment() ? open_boot_id() : -1;
    if (sscanf(path, "/proc/%d/stat%n", &pid, &end) == 1 && end && !path[end])
        return join_segment() ? open_stat(pid) : -1;
    return -1;
}
