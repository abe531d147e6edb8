/* SPDX-License-Identifier: Apache-2.0 */
/* A program for any MPI, which knows nothing of shared memory.
 *
 *   mpi_exchange random COUNT SEED   COUNT messages of random sizes between random ranks, each
 *                                    compared word by word, then collectives and one-sided calls
 *   mpi_exchange one-way BYTES       the first message of all goes one way and is long
 *   mpi_exchange stream              rank 0 sends to rank 1 without an end; each says its PID
 *
 * Rank 0 prints "correct: N messages, B bytes, R ranks" and all end with 0, or some end with 1. */
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS_MAX (1u << 18)

static int rank, ranks;
static uint64_t state;
static uint64_t sent[WORDS_MAX], got[WORDS_MAX + 1];

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t next_word(uint64_t word)
{
    return word * 6364136223846793005ull + 1442695040888963407ull;
}

static void fill_words(uint64_t *words, size_t count, uint64_t key)
{
    for (size_t i = 0; i < count; i++)
        words[i] = key = next_word(key);
}

static void expect(int right, const char *what)
{
    if (right)
        return;
    printf("rank %d: wrong: %s\n", rank, what);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void compare_words(const uint64_t *words, size_t count, uint64_t key)
{
    for (size_t i = 0; i < count; i++) {
        key = next_word(key);
        expect(words[i] == key, "a word of a message");
    }
}

/* The MPIs wait without giving their CPU away, and ranks may be more than CPUs. */
static void await_request(MPI_Request request)
{
    int done = 0;

    for (;;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done)
            return;
        sched_yield();
    }
}

/* All ranks draw the same: who sends what to whom. */
static long exchange_random(long count)
{
    long bytes = 0;

    for (long k = 0; k < count; k++) {
        int from = (int)(draw() % (uint64_t)ranks);
        int to = (from + 1 + (int)(draw() % (uint64_t)(ranks - 1))) % ranks;
        size_t words = 1 + draw() % (1ull << (1 + draw() % 18));
        MPI_Request request;
        uint64_t key = draw();

        bytes += (long)words * 8;
        if (rank == from) {
            fill_words(sent, words, key);
            MPI_Isend(sent, (int)words, MPI_UINT64_T, to, (int)(k % 30000), MPI_COMM_WORLD,
                      &request);
            await_request(request);
        } else if (rank == to) {
            got[words] = 7;
            MPI_Irecv(got, (int)words, MPI_UINT64_T, from, (int)(k % 30000), MPI_COMM_WORLD,
                      &request);
            await_request(request);
            compare_words(got, words, key);
            expect(got[words] == 7, "a word behind a message");
        }
    }
    return bytes;
}

static void reduce_all(void)
{
    int64_t one = rank + 1, sum = 0;

    MPI_Allreduce(&one, &sum, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    expect(sum == (int64_t)ranks * (ranks + 1) / 2, "a sum over all");
}

static void put_and_add(void)
{
    int64_t *memory, one = 1, old, mark = 77 + rank;
    MPI_Win window;

    MPI_Win_allocate(64, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    memset(memory, 0, 64);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window);
    for (int i = 0; i < 10; i++) {
        MPI_Fetch_and_op(&one, &old, MPI_INT64_T, 0, 0, MPI_SUM, window);
        MPI_Win_flush(0, window);
    }
    MPI_Put(&mark, 1, MPI_INT64_T, (rank + 1) % ranks, 5, 1, MPI_INT64_T, window);
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    expect(rank != 0 || memory[0] == 10 * ranks, "a sum in a window");
    expect(memory[5] == 77 + (rank + ranks - 1) % ranks, "a word put in a window");
    MPI_Win_free(&window);
}

static void run_random(long count, uint64_t seed)
{
    long bytes;

    state = seed * 2654435761u + 88172645463325252ull;
    bytes = exchange_random(count);
    reduce_all();
    put_and_add();
    if (rank == 0)
        printf("correct: %ld messages, %ld bytes, %d ranks\n", count, bytes, ranks);
}

static void run_one_way(size_t bytes)
{
    size_t words = bytes / 8 < WORDS_MAX ? bytes / 8 : WORDS_MAX;

    if (rank == 0) {
        fill_words(sent, words, 3);
        MPI_Send(sent, (int)words, MPI_UINT64_T, 1, 1, MPI_COMM_WORLD);
    } else if (rank == 1) {
        MPI_Recv(got, (int)words, MPI_UINT64_T, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        compare_words(got, words, 3);
        printf("correct: 1 messages, %zu bytes, %d ranks\n", words * 8, ranks);
    }
}

static void run_stream(void)
{
    printf("pid %d\n", (int)getpid());
    fflush(stdout);
    for (;;) {
        if (rank == 0)
            MPI_Send(sent, WORDS_MAX, MPI_UINT64_T, 1, 1, MPI_COMM_WORLD);
        else if (rank == 1)
            MPI_Recv(got, WORDS_MAX, MPI_UINT64_T, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

int main(int count, char **words)
{
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count == 4 && ranks > 1 && !strcmp(words[1], "random"))
        run_random(atol(words[2]), strtoull(words[3], NULL, 10));
    else if (count == 3 && ranks > 1 && !strcmp(words[1], "one-way"))
        run_one_way(strtoull(words[2], NULL, 10));
    else if (count == 2 && ranks > 1 && !strcmp(words[1], "stream"))
        run_stream();
    else
        MPI_Abort(MPI_COMM_WORLD, 2);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
