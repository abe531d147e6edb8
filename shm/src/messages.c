/* SPDX-License-Identifier: Apache-2.0 */
#include "messages.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "settings.h"

/* One write: lines of several ranks do not mix, and the program's own stdio is left alone. */
static void write_line(const char *format, va_list words)
{
    static const char begin[] = "nova-hpc-shm: ";
    char line[512];
    int error = errno;
    size_t length = sizeof begin - 1;

    memcpy(line, begin, length);
    vsnprintf(line + length, sizeof line - length - 1, format, words);
    length = strlen(line);
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) < 0) {
        /* There is no other place to say it. */
    }
    errno = error;
}

void write_message(const char *format, ...)
{
    va_list words;

    va_start(words, format);
    write_line(format, words);
    va_end(words);
}

void write_debug(const char *format, ...)
{
    va_list words;

    if (!settings.debug)
        return;
    va_start(words, format);
    write_line(format, words);
    va_end(words);
}
