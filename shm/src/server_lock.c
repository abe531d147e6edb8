/* SPDX-License-Identifier: Apache-2.0 */
#include "server_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "real_calls.h"
#include "segment_format.h"

/* A process that was stopped while it held the lock must not stop all jobs of the server. */
#define LOCK_SECONDS 30
#define LOCK_STEP_NS 1000000
#define KEPT_BYTES 4096 /* nothing is read there: the file may be empty */

static const char *lock_path;
static dev_t lock_device;
static ino_t lock_inode;
static void *kept; /* the mapping that keeps the number's file open */
static int guard_fd = -1;

static int set_byte(int fd, int command, short type, uint32_t byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};

    return fcntl(fd, command, &lock);
}

static bool is_held_by_other(void)
{
    return errno == EAGAIN || errno == EACCES;
}

static int open_lock_file(struct stat *status)
{
    int fd = real.open(lock_path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    int error;

    if (fd >= 0 && fstat(fd, status)) {
        error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static const char *lock_lowest(int fd, uint32_t *number)
{
    for (uint32_t byte = 1; byte <= PROCESSES_MAX; byte++) {
        if (!set_byte(fd, F_OFD_SETLK, F_WRLCK, byte)) {
            *number = byte;
            return NULL;
        }
        if (!is_held_by_other())
            return "it cannot be locked";
    }
    errno = 0;
    return "all numbers for processes of this server are taken: run fewer ranks in it";
}

static const char *take_number_of(int fd, const struct stat *status, uint32_t *number)
{
    const char *wrong;

    errno = 0;
    if (!S_ISREG(status->st_mode))
        return "it is no file";
    wrong = lock_lowest(fd, number);
    if (wrong)
        return wrong;
    kept = real.mmap(NULL, KEPT_BYTES, PROT_NONE, MAP_PRIVATE, fd, 0);
    if (kept == MAP_FAILED)
        return "it cannot be mapped";
    lock_device = status->st_dev;
    lock_inode = status->st_ino;
    return NULL;
}

const char *take_number(const char *path, uint32_t *number)
{
    struct stat status;
    const char *wrong;
    int fd, error;

    lock_path = path;
    fd = open_lock_file(&status);
    if (fd < 0)
        return "it cannot be opened";
    wrong = take_number_of(fd, &status, number);
    error = errno;
    close(fd); /* the mapping keeps it */
    errno = error;
    return wrong;
}

void drop_number(void)
{
    real.munmap(kept, KEPT_BYTES);
}

/* Another file of this name knows nothing of who is alive. */
static bool open_guard(void)
{
    struct stat status;

    guard_fd = open_lock_file(&status);
    if (guard_fd < 0)
        return false;
    if (status.st_dev == lock_device && status.st_ino == lock_inode)
        return true;
    close(guard_fd);
    guard_fd = -1;
    errno = ESTALE;
    return false;
}

static bool wait_for_lock(void)
{
    const struct timespec step = {.tv_nsec = LOCK_STEP_NS};
    struct timespec begun, now;

    clock_gettime(CLOCK_MONOTONIC, &begun);
    while (set_byte(guard_fd, F_OFD_SETLK, F_WRLCK, 0)) {
        if (!is_held_by_other())
            return false;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - begun.tv_sec > LOCK_SECONDS) {
            errno = ETIMEDOUT;
            return false;
        }
        nanosleep(&step, NULL);
    }
    return true;
}

bool lock_server(void)
{
    int error;

    if (!open_guard())
        return false;
    if (wait_for_lock())
        return true;
    error = errno;
    unlock_server();
    errno = error;
    return false;
}

void unlock_server(void)
{
    /* Said, too: a thread that starts a program has a copy of the descriptor for a moment. */
    set_byte(guard_fd, F_OFD_SETLK, F_UNLCK, 0);
    close(guard_fd);
    guard_fd = -1;
}

bool is_number_alive(uint32_t number)
{
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)number, .l_len = 1};

    return fcntl(guard_fd, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}
