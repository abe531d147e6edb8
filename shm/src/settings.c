/* SPDX-License-Identifier: Apache-2.0 */
#include "settings.h"

#include <stdlib.h>
#include <string.h>

struct settings settings;

static const char *read_variable(const char *name, const char *otherwise)
{
    const char *value = getenv(name);

    return value && *value ? value : otherwise;
}

void read_settings(void)
{
    const char *directory = read_variable("NOVA_HPC_SHM_DIR", "/run/nova-hpc/shared");
    size_t length = strlen(directory);

    settings.device = read_variable("NOVA_HPC_SHM_DEVICE", "/dev/nova-hpc-shared");
    settings.lock = read_variable("NOVA_HPC_SHM_LOCK", "/run/nova-hpc/shared.lock");
    settings.part = read_variable("NOVA_HPC_SHM_PART", NULL);
    settings.debug = read_variable("NOVA_HPC_SHM_DEBUG", NULL) != NULL;
    if (length > sizeof settings.directory - 2)
        return; /* no path begins with an empty directory: see name_below */
    memcpy(settings.directory, directory, length);
    while (length > 0 && settings.directory[length - 1] == '/')
        length--;
    settings.directory[length++] = '/';
    settings.directory[length] = 0;
    settings.directory_bytes = length;
}
