/* SPDX-License-Identifier: Apache-2.0 */
/* Which descriptors stand for files of the shared memory.
 *
 * Such a descriptor is open on /dev/null: UCX writes zeros to a new file to see whether there is
 * room, and closes it when it has mapped it. A number that was closed and given to another file is
 * known by that: what is no /dev/null stands for nothing here. So close() needs no hook. */
#ifndef NOVA_HPC_SHM_OPEN_FILES_H
#define NOVA_HPC_SHM_OPEN_FILES_H

#include <stdbool.h>

#include "directory.h"

struct open_file {
    int fd;
    char name[NAME_BYTES];
    struct file_place place;
};

/* A new descriptor for the file: -1 with errno. */
int add_open_file(const char *name, struct file_place place);

/* What *fd* stands for: false if for no file of the shared memory. */
bool find_open_file(int fd, struct open_file *file);

#endif
