/* SPDX-License-Identifier: Apache-2.0 */
#include "call_order.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

/* No file has this number and no mapping this address: elsewhere the calls fail, and do nothing. */
#define TEST_FD (-0x4e485043)
#define TEST_ADDRESS ((void *)1)
#define TEST_BYTES 4096

/* The symbols by their own names, bound as those of UCX are: sys/mman.h calls one by the other. */
typedef void *map_call(void *address, size_t length, int protection, int flags, int fd, int64_t at);
typedef int unmap_call(void *address, size_t length);

extern map_call named_mmap __asm__("mmap");
extern map_call named_mmap64 __asm__("mmap64");
extern unmap_call named_munmap __asm__("munmap");

static _Atomic bool reached;

bool answer_mmap_test(int fd)
{
    if (fd != TEST_FD)
        return false;
    reached = true;
    errno = EBADF;
    return true;
}

bool answer_munmap_test(const void *address)
{
    if (address != TEST_ADDRESS)
        return false;
    reached = true;
    errno = EINVAL;
    return true;
}

static bool reaches_mmap(map_call *call)
{
    reached = false;
    call(NULL, TEST_BYTES, PROT_READ, MAP_SHARED, TEST_FD, 0);
    return reached;
}

static bool reaches_munmap(void)
{
    reached = false;
    named_munmap(TEST_ADDRESS, TEST_BYTES);
    return reached;
}

static const char *name_file_of(const void *call)
{
    Dl_info where;

    return dladdr(call, &where) && where.dli_fname ? where.dli_fname : "another library";
}

const char *find_other_calls(void)
{
    int error = errno;
    const char *other = NULL;

    if (!reaches_mmap(named_mmap))
        other = name_file_of((const void *)(uintptr_t)named_mmap);
    else if (!reaches_mmap(named_mmap64))
        other = name_file_of((const void *)(uintptr_t)named_mmap64);
    else if (!reaches_munmap())
        other = name_file_of((const void *)(uintptr_t)named_munmap);
    errno = error;
    return other;
}
