/* SPDX-License-Identifier: Apache-2.0 */
#include "open_files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "messages.h"
#include "real_calls.h"

#define OPEN_MAX_FILES 256 /* at one moment; UCX has one in each thread that connects */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static struct open_file files[OPEN_MAX_FILES];
static _Atomic unsigned int files_count;

static bool is_null_device(int fd)
{
    struct stat status;

    return !fstat(fd, &status) && S_ISCHR(status.st_mode) && status.st_rdev == makedev(1, 3);
}

static void forget_closed(void)
{
    unsigned int kept = 0;

    for (unsigned int i = 0; i < files_count; i++)
        if (is_null_device(files[i].fd))
            files[kept++] = files[i];
    files_count = kept;
}

/* The place for *fd* in the table: the one of its last life, or a new one. */
static struct open_file *place_of(int fd)
{
    for (unsigned int i = 0; i < files_count; i++)
        if (files[i].fd == fd)
            return &files[i];
    if (files_count == OPEN_MAX_FILES)
        forget_closed();
    return files_count < OPEN_MAX_FILES ? &files[files_count++] : NULL;
}

int add_open_file(const char *name, struct file_place place)
{
    int fd = real.open("/dev/null", O_RDWR | O_CLOEXEC);
    struct open_file *file;

    if (fd < 0)
        return -1;
    pthread_mutex_lock(&mutex);
    file = place_of(fd);
    if (file) {
        *file = (struct open_file){.fd = fd, .place = place};
        memcpy(file->name, name, strnlen(name, NAME_BYTES - 1));
    }
    pthread_mutex_unlock(&mutex);
    if (file)
        return fd;
    write_message("a process may have %d files of the shared memory open", OPEN_MAX_FILES);
    close(fd);
    errno = EMFILE;
    return -1;
}

bool find_open_file(int fd, struct open_file *file)
{
    bool found = false;

    if (fd < 0 || files_count == 0)
        return false;
    pthread_mutex_lock(&mutex);
    for (unsigned int i = 0; i < files_count && !found; i++) {
        found = files[i].fd == fd;
        if (found)
            *file = files[i];
    }
    pthread_mutex_unlock(&mutex);
    return found && is_null_device(fd);
}
