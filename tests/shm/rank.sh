#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A rank of an MPI job as if it were in the server that has part RANK % PARTS: with a lock of its own.
# Its PID is in a file before it does anything. rank.sh PROGRAM WORDS...
rank=${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-0}}
part=$((rank % SHM_TEST_PARTS))
export NOVA_HPC_SHM_PART=$part NOVA_HPC_SHM_LOCK="$SHM_TEST_FOLDER/lock.$part"
echo $$ >"$SHM_TEST_FOLDER/new.$rank"
mv "$SHM_TEST_FOLDER/new.$rank" "$SHM_TEST_FOLDER/pid.$rank"
export LD_PRELOAD="$SHM_TEST_LIBRARY"
exec "$@"
