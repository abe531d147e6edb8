/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NOVA_HPC_SHM_MESSAGES_H
#define NOVA_HPC_SHM_MESSAGES_H

/* Write a line to standard error, "nova-hpc-shm: " before it. Keeps errno. */
void write_message(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same if NOVA_HPC_SHM_DEBUG is set. */
void write_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
