/* SPDX-License-Identifier: Apache-2.0 */
/* What UCX, and UCX alone, is told of the machine: others, like psutil in a rank, get the truth. */
#ifndef NOVA_HPC_SHM_ANSWERS_H
#define NOVA_HPC_SHM_ANSWERS_H

#include <stdbool.h>

/* Whether the code at *caller* is UCX's. */
bool is_ucx(const void *caller);

/* A descriptor with the answer for *path*: -1 if the file itself is the answer. */
int open_answer(const char *path);

#endif
