/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the calls of UCX reach this library.
 *
 * A program or a library before this one in LD_PRELOAD may have an mmap() of its own that goes on to
 * the kernel (tcmalloc, AddressSanitizer). UCX would map a file there that only this library has. */
#ifndef NOVA_HPC_SHM_CALL_ORDER_H
#define NOVA_HPC_SHM_CALL_ORDER_H

#include <stdbool.h>

/* Make one call of each kind as UCX does. Returns NULL if all reach this library, else the file
 * with the other mmap() or munmap(). Not for two threads at one moment. */
const char *find_other_calls(void);

/* For mmap() and munmap() of this library: whether the call is one of these, which maps nothing. */
bool answer_mmap_test(int fd);
bool answer_munmap_test(const void *address);

#endif
