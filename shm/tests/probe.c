/* SPDX-License-Identifier: Apache-2.0 */
/* probe WHAT: one use of files in the folder that the library stands before. Prints what it saw;
 * ends with 1 at what must not be. tests/shm/test_library.py runs it. */
#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>

#include "use_files.h"

#define BYTES 8192
#define WORDS (BYTES / 8)

/* In libucs-probe.so: its name makes it UCX. */
int open_as_ucx(const char *path);

static void print_file(int fd)
{
    char text[256];
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

    text[length < 0 ? 0 : length] = 0;
    printf("%s", text);
    close(fd);
}

static void use_one_file(void)
{
    uint64_t *words = map_name("one", O_CREAT | O_EXCL, BYTES), *again;
    int fd = open_name("one", 0);

    expect(words);
    for (int i = 0; i < WORDS; i++)
        expect(words[i] == 0);
    words[0] = 42;
    errno = 0;
    expect(open_name("one", O_CREAT | O_EXCL) < 0 && errno == EEXIST);
    expect(open_name("none", 0) < 0 && errno == ENOENT);
    expect(unlink_name("none") < 0 && errno == ENOENT);
    again = map_name("one", 0, BYTES);
    expect(again == words);
    expect(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 4096) == (uint8_t *)words + 4096);
    expect(mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, BYTES) == MAP_FAILED && errno == ENXIO);
    expect(mmap(NULL, BYTES + 1, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ENXIO);
    expect(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL);
    expect(mmap(words, BYTES, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED);
    expect(mmap(NULL, BYTES, PROT_READ, MAP_SHARED | MAP_HUGETLB, fd, 0) == MAP_FAILED);
    expect(write(fd, words, BYTES) == BYTES); /* as UCX does to see whether there is room */
    expect(words[0] == 42);
    expect(!munmap(again, BYTES) && !munmap(again, BYTES));
    expect(!unlink_name("one") && open_name("one", 0) < 0);
    expect(!munmap(words, BYTES) && words[0] == 42);
}

/* What another file has got as its number is not ours, and a copy of the number neither. */
static void reuse_a_number(void)
{
    int fd = open_name("one", O_CREAT | O_EXCL), other;
    char *text;

    expect(fd >= 0);
    expect(mmap(NULL, BYTES, PROT_READ, MAP_SHARED, dup(fd), 0) == MAP_FAILED);
    close(fd);
    other = open("/etc/passwd", O_RDONLY);
    expect(other == fd);
    text = mmap(NULL, 4, PROT_READ, MAP_SHARED, other, 0);
    expect(text != MAP_FAILED && !memcmp(text, "root", 4));
    expect(!munmap(text, 4));
    fd = open_name("two", O_CREAT | O_EXCL);
    expect(dup2(other, fd) == fd);
    text = mmap(NULL, 4, PROT_READ, MAP_SHARED, fd, 0);
    expect(text != MAP_FAILED && !memcmp(text, "root", 4));
    for (int i = 0; i < 1000; i++) { /* more numbers than the table has rows */
        fd = open_name("two", 0);
        expect(fd >= 0 && dup2(fd, 20 + i % 900) >= 0);
        close(fd);
    }
}

/* A child lets go of what it inherited, and has files of its own. */
static void fork_a_child(void)
{
    uint64_t *words = map_name("parent", O_CREAT | O_EXCL, BYTES);
    int status;
    pid_t child;

    expect(words);
    words[5] = 42;
    child = fork();
    if (child == 0) {
        uint64_t *own = map_name("child", O_CREAT | O_EXCL, BYTES);

        expect(own && own != words && words[5] == 42);
        expect(!munmap(words, BYTES) && words[5] == 42);
        expect(!munmap(own, BYTES));
        expect(!unlink_name("child"));
        exit(0);
    }
    expect(waitpid(child, &status, 0) == child && status == 0);
    expect(!unlink_name("parent"));
    printf("ready\n"); /* what it has mapped is held still; the test looks */
    fflush(stdout);
    getchar();
    expect(words[5] == 42);
}

/* Forked while its parent lives, it keeps what it sees when the parent has ended. */
static void leave_a_child(void)
{
    uint64_t *words = map_name("parent", O_CREAT | O_EXCL, BYTES);

    expect(words);
    if (fork())
        _exit(0);
    printf("ready\n");
    fflush(stdout);
    getchar();
}

static void close_all(void)
{
    uint64_t *words = map_name("one", O_CREAT | O_EXCL, BYTES);

    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    expect(words && map_name("two", O_CREAT | O_EXCL, BYTES));
    printf("ready\n");
    fflush(stdout);
    getchar();
    expect(map_name("two", 0, BYTES));
}

static void *use_in_thread(void *number)
{
    char name[32];

    for (int i = 0; i < 40; i++) {
        uint64_t *words, mark = (uint64_t)(uintptr_t)number << 32 | (uint64_t)i;

        snprintf(name, sizeof name, "t%d.%d", (int)(uintptr_t)number, i);
        words = map_name(name, O_CREAT | O_EXCL, BYTES);
        expect(words);
        for (int k = 0; k < WORDS; k++) {
            expect(words[k] == 0);
            words[k] = mark;
        }
        for (int k = 0; k < WORDS; k++)
            expect(words[k] == mark);
        expect(!munmap(words, BYTES) && !unlink_name(name));
    }
    return NULL;
}

static void use_threads(void)
{
    pthread_t threads[8];

    for (uintptr_t i = 0; i < 8; i++)
        expect(!pthread_create(&threads[i], NULL, use_in_thread, (void *)(i + 1)));
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
}

static void fill_the_part(void)
{
    char name[32];
    int made = 0;

    for (; made < 100; made++) {
        snprintf(name, sizeof name, "f%d", made);
        if (!map_name(name, O_CREAT | O_EXCL, 1 << 20))
            break;
    }
    printf("%d files: %s\n", made, strerror(errno));
}

static void see_the_truth(void)
{
    print_file(open("/proc/sys/kernel/random/boot_id", O_RDONLY));
    print_file(open_as_ucx("/proc/sys/kernel/random/boot_id"));
    print_file(open_as_ucx("/proc/999999999/stat"));
    expect(open("/proc/999999999/stat", O_RDONLY) < 0 && errno == ENOENT);
    expect(open_as_ucx("/proc/999999999/status") < 0 && errno == ENOENT);
}

/* A file of another server, until a line comes. */
static void hold_a_file(void)
{
    uint64_t *words = map_name("held", O_CREAT | O_EXCL, BYTES);

    expect(words);
    words[7] = 42;
    printf("ready\n");
    fflush(stdout);
    getchar();
}

static void see_a_file(void)
{
    uint64_t *words = map_name("held", 0, BYTES);

    expect(words && words[7] == 42);
    printf("ready\n");
    fflush(stdout);
    getchar();
    expect(words[7] == 42);
}

static void join(void)
{
    printf("%s\n", open_name("none", 0) < 0 ? strerror(errno) : "there");
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        void (*use)(void);
    } uses[] = {{"one-file", use_one_file},
                {"number", reuse_a_number},
                {"fork", fork_a_child},
                {"orphan", leave_a_child},
                {"close-all", close_all},
                {"threads", use_threads},
                {"full", fill_the_part},
                {"truth", see_the_truth},
                {"hold", hold_a_file},
                {"see", see_a_file},
                {"join", join}};

    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        if (count == 2 && !strcmp(words[1], uses[i].name)) {
            uses[i].use();
            return 0;
        }
    }
    return 2;
}
