/* SPDX-License-Identifier: Apache-2.0 */
/* Locks among the processes of one server, kept by its own kernel on bytes of a file in /run.
 *
 * Byte 0 is the lock of the server's directory. Byte n is held by the process that has number n, as
 * long as it lives: who is alive is asked of the kernel, never of a PID, which means nothing in
 * another namespace and is given again. A process that is killed at any moment leaves no lock.
 *
 * The locks are those of an open file (F_OFD_*), so a close() elsewhere in the program drops none.
 * A mapping keeps the number's file open, not a descriptor: some programs close all that they do
 * not know. A forked child has the mapping, so a number lives as long as who may see its files. The
 * lock of the directory has a descriptor while it is held only, and no child gets that one. */
#ifndef NOVA_HPC_SHM_SERVER_LOCK_H
#define NOVA_HPC_SHM_SERVER_LOCK_H

#include <stdbool.h>
#include <stdint.h>

/* Open the lock's file and take the lowest free number: NULL, or what is wrong, with errno or 0.
 * In a forked child, it takes one more, and keeps its parent's alive. */
const char *take_number(const char *path, uint32_t *number);

/* Give the number that was taken last back. */
void drop_number(void);

/* Take the lock of the directory: false, with errno, if it is not to be had. */
bool lock_server(void);

void unlock_server(void);

/* Whether the process of this server that has *number* lives; under the lock. Unknown is yes. */
bool is_number_alive(uint32_t number);

#endif
