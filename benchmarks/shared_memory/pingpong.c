/* SPDX-License-Identifier: Apache-2.0 */
/* pingpong SECONDS SIZE...: the median time of a message from rank 0 to rank 1 or back, in us.
 * Prints "SIZE US ROUNDS" for each size; every message is compared with the sent one. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 20000

static int compare_times(const void *first, const void *second)
{
    double difference = *(const double *)first - *(const double *)second;

    return (difference > 0) - (difference < 0);
}

int main(int count, char **words)
{
    static double times[ROUNDS];
    int rank, right = 1;

    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int at = 2; at < count; at++) {
        int size = atoi(words[at]), rounds = 0, more = 1;
        char *sent = malloc(size), *got = malloc(size);
        double end = 0;

        memset(sent, at + 7, size);
        for (int k = -20; more && k < ROUNDS; k++) {
            double begin;

            memset(got, 0, size);
            if (k == 0)
                end = MPI_Wtime() + atof(words[1]);
            begin = MPI_Wtime();
            if (rank == 0) {
                MPI_Send(sent, size, MPI_BYTE, 1, at, MPI_COMM_WORLD);
                MPI_Recv(got, size, MPI_BYTE, 1, at, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else {
                MPI_Recv(got, size, MPI_BYTE, 0, at, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(got, size, MPI_BYTE, 0, at, MPI_COMM_WORLD);
            }
            if (k >= 0)
                times[rounds++] = (MPI_Wtime() - begin) / 2;
            right = right && !memcmp(sent, got, size);
            if (k >= 0 && rank == 0)
                more = rounds < 10 || MPI_Wtime() < end;
            if (k >= 0 && k % 10 == 9) /* seldom, so that it does not change the times */
                MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
            else
                more = 1;
        }
        qsort(times, rounds, sizeof *times, compare_times);
        if (rank == 0)
            printf("%d %.3f %d\n", size, times[rounds / 2] * 1e6, rounds);
        free(sent);
        free(got);
    }
    if (!right)
        printf("rank %d: wrong\n", rank);
    MPI_Finalize();
    return !right;
}
