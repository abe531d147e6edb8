/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a program that this library stands before (LD_PRELOAD).
 *
 * UCX patches the code of the mmap() that dlsym() finds, so that it hears of memory that goes away.
 * If it found the one here, it would go on to the kernel, past it. Callers are bound to a symbol
 * by its version, and dlsym() finds the default version only: so the symbols here have the
 * C library's first version, which callers were linked with, and are not the default. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "answers.h"
#include "call_order.h"
#include "membership.h"
#include "open_files.h"
#include "real_calls.h"
#include "settings.h"

#if defined(__x86_64__)
#define FIRST_VERSION "GLIBC_2.2.5"
#define CHECKED_VERSION "GLIBC_2.7"
#elif defined(__aarch64__)
#define FIRST_VERSION "GLIBC_2.17"
#define CHECKED_VERSION "GLIBC_2.17"
#else
#error "the versions of the C library's symbols on this machine are unknown"
#endif

#define EXPORT_AS(name, version) __attribute__((visibility("default"), symver(#name "@" version)))

__attribute__((constructor)) static void begin(void)
{
    static bool begun;

    find_real_calls();
    if (!begun)
        read_settings();
    begun = true;
}

/* The name of a file right below UCX's directory, or NULL. */
static const char *name_below(const char *path)
{
    const char *name;

    if (!path || !settings.directory_bytes ||
        strncmp(path, settings.directory, settings.directory_bytes) != 0)
        return NULL;
    name = path + settings.directory_bytes;
    while (*name == '/')
        name++;
    return *name && !strchr(name, '/') && strlen(name) < NAME_BYTES ? name : NULL;
}

static int open_shared(const char *name, int flags)
{
    struct file_place place;
    int error = open_file(name, flags, &place);

    if (!error)
        return add_open_file(name, place);
    errno = error;
    return -1;
}

static int open_path(const char *path, int flags, mode_t mode, const void *caller)
{
    const char *name;
    int fd;

    begin();
    name = name_below(path);
    if (name && join_segment())
        return open_shared(name, flags);
    if (path && !strncmp(path, "/proc/", 6) && is_ucx(caller)) {
        fd = open_answer(path);
        if (fd >= 0)
            return fd;
    }
    return real.open(path, flags, mode);
}

/* Each hook stands in the text of its own, since the caller's address is asked for there. */
#define DEFINE_OPEN(name, hook)                                                                    \
    EXPORT_AS(name, FIRST_VERSION) int hook(const char *path, int flags, ...);                     \
    int hook(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        mode_t mode = 0;                                                                           \
        va_list words;                                                                             \
                                                                                                   \
        if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {                                 \
            va_start(words, flags);                                                                \
            mode = va_arg(words, mode_t);                                                          \
            va_end(words);                                                                         \
        }                                                                                          \
        return open_path(path, flags, mode, __builtin_return_address(0));                          \
    }

DEFINE_OPEN(open, hook_open)
DEFINE_OPEN(open64, hook_open64)

EXPORT_AS(__open_2, CHECKED_VERSION)
int hook_open_2(const char *path, int flags);
int hook_open_2(const char *path, int flags)
{
    return open_path(path, flags, 0, __builtin_return_address(0));
}

EXPORT_AS(__open64_2, CHECKED_VERSION)
int hook_open64_2(const char *path, int flags);
int hook_open64_2(const char *path, int flags)
{
    return open_path(path, flags, 0, __builtin_return_address(0));
}

EXPORT_AS(unlink, FIRST_VERSION)
int hook_unlink(const char *path);
int hook_unlink(const char *path)
{
    const char *name;
    int error;

    begin();
    name = name_below(path);
    if (!name || !join_segment())
        return real.unlink(path);
    error = remove_file(name);
    if (!error)
        return 0;
    errno = error;
    return -1;
}

EXPORT_AS(mmap, FIRST_VERSION)
void *hook_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset);
void *hook_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    struct open_file file;
    void *mapped;

    begin();
    if (answer_mmap_test(fd))
        return MAP_FAILED;
    if (!(flags & MAP_SHARED) || !find_open_file(fd, &file))
        return real.mmap(address, length, protection, flags, fd, offset);
    if (flags & (MAP_HUGETLB | MAP_FIXED) || offset < 0) {
        errno = EINVAL; /* UCX tries it without, then */
        return MAP_FAILED;
    }
    mapped = map_file(file.name, file.place, length, (uint64_t)offset);
    return mapped ? mapped : MAP_FAILED;
}

EXPORT_AS(mmap64, FIRST_VERSION)
void *hook_mmap64(void *address, size_t length, int protection, int flags, int fd, off_t offset);
void *hook_mmap64(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    return hook_mmap(address, length, protection, flags, fd, offset);
}

EXPORT_AS(munmap, FIRST_VERSION)
int hook_munmap(void *address, size_t length);
int hook_munmap(void *address, size_t length)
{
    begin();
    if (answer_munmap_test(address))
        return -1;
    return unmap_file(address) ? 0 : real.munmap(address, length);
}
