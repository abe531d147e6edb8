// SPDX-License-Identifier: Apache-2.0
/*
 * A stand-in for NVIDIA Fabric Manager and its library, for tests.
 *
 * It speaks the interface of the "Fabric Manager User Guide" as it is recorded
 * here, and was not compared with the real product. The manager is a file: its
 * path is the address, so that it can be restarted, broken and looked at.
 *
 *   mode shared|bare|starting|restarted
 *   sdk 1|2                       newest layout of fmConnect that it takes
 *   fail FUNCTION CODE            this function returns this code
 *   hang FUNCTION                 this function never returns
 *   deaf FUNCTION                 this one returns success and does nothing
 *   part ID ACTIVE PHYSICAL_ID... a partition
 *   gpu PHYSICAL_ID BUS_ID LINKS  a GPU; "-" for no bus id
 *
 * Every call is added to the file beside it that ends in ".calls".
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OK = 0, BADPARAM = -1, GENERIC = -2, NOT_SUPPORTED = -3, UNINITIALIZED = -4,
    VERSION = -6, IN_USE = -7, NOT_CONFIGURED = -8, NOT_VALID = -9
};

typedef struct {
    unsigned int version;
    char addressInfo[256];
    unsigned int timeoutMs;
    unsigned int addressIsUnixSocket;
} connect_v1;

typedef struct {
    connect_v1 first;
    int addressType;
} connect_v2;

typedef struct {
    unsigned int physicalId;
    char uuid[80];
    char pciBusId[32];
    unsigned int numNvLinksAvailable;
    unsigned int maxNumNvLinks;
    unsigned int nvlinkLineRateMBps;
} gpu_info;

typedef struct {
    unsigned int partitionId;
    unsigned int isActive;
    unsigned int numGpus;
    gpu_info gpuInfo[16];
} partition_info;

typedef struct {
    unsigned int version;
    unsigned int numPartitions;
    unsigned int maxNumPartitions;
    partition_info partitionInfo[64];
} partition_list;

typedef struct {
    unsigned int version;
    unsigned int numPartitions;
    unsigned int partitionIds[64];
} active_list;

#define VERSION_OF(type, number) ((unsigned int)(sizeof(type) | ((number) << 24)))

static int initialised;
static char path[256];
static char mode[16], fails[32], hangs[32], deafs[32];
static int code, sdk;
static partition_list table;
static gpu_info gpus[17];

static void load(void) {
    char line[512], word[32], *rest;
    FILE *file = fopen(path, "r");
    unsigned int id, active, links;
    int used;

    memset(&table, 0, sizeof table);
    memset(gpus, 0, sizeof gpus);
    *mode = *fails = *hangs = *deafs = 0;
    sdk = 2;
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "mode %15s", mode);
        sscanf(line, "sdk %d", &sdk);
        sscanf(line, "fail %31s %d", fails, &code);
        sscanf(line, "hang %31s", hangs);
        sscanf(line, "deaf %31s", deafs);
        if (sscanf(line, "gpu %u %31s %u", &id, word, &links) == 3 && id < 17) {
            gpus[id].physicalId = id;
            gpus[id].maxNumNvLinks = gpus[id].numNvLinksAvailable = links;
            strcpy(gpus[id].pciBusId, strcmp(word, "-") ? word : "00000000:00:00.0");
        }
        if (sscanf(line, "part %u %u%n", &id, &active, &used) == 2) {
            partition_info *one = &table.partitionInfo[table.numPartitions++];
            one->partitionId = id;
            one->isActive = active;
            rest = line + used;
            while (sscanf(rest, " %u%n", &id, &used) == 1 && one->numGpus < 16) {
                one->gpuInfo[one->numGpus] = gpus[id];
                one->gpuInfo[one->numGpus++].physicalId = id;
                rest += used;
            }
        }
    }
    if (file)
        fclose(file);
    for (unsigned int i = 0; i < table.numPartitions; i++)
        if (table.partitionInfo[i].numGpus == 1)
            table.partitionInfo[i].gpuInfo[0].numNvLinksAvailable = 0;
    table.maxNumPartitions = table.numPartitions;
}

/* Writes the file anew with other modes and states of partitions. */
static void save(void) {
    char text[16384] = "", line[512];
    FILE *file = fopen(path, "r");

    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "part ", 5) && strncmp(line, "mode ", 5))
            strcat(text, line);
    if (file)
        fclose(file);
    sprintf(text + strlen(text), "mode %s\n", mode);
    for (unsigned int i = 0; i < table.numPartitions; i++) {
        partition_info *one = &table.partitionInfo[i];
        sprintf(text + strlen(text), "part %u %u", one->partitionId, one->isActive);
        for (unsigned int j = 0; j < one->numGpus; j++)
            sprintf(text + strlen(text), " %u", one->gpuInfo[j].physicalId);
        strcat(text, "\n");
    }
    file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
}

static void note(const char *format, ...) {
    char name[300];
    va_list words;
    FILE *file;

    snprintf(name, sizeof name, "%s.calls", path);
    file = fopen(name, "a");
    va_start(words, format);
    vfprintf(file, format, words);
    va_end(words);
    fclose(file);
}

/* What every function but the first ones begins with. */
static int begin(const char *function, void *handle) {
    if (!initialised || handle != path)
        return initialised ? BADPARAM : UNINITIALIZED;
    load();
    while (!strcmp(hangs, function))
        sleep(1);
    if (!strcmp(fails, function))
        return code;
    if (!strcmp(mode, "bare"))
        return NOT_SUPPORTED;
    if (strcmp(mode, "shared") && strcmp(function, "fmSetActivatedFabricPartitions"))
        return NOT_CONFIGURED;
    return OK;
}

static partition_info *find(unsigned int id) {
    for (unsigned int i = 0; i < table.numPartitions; i++)
        if (table.partitionInfo[i].partitionId == id)
            return &table.partitionInfo[i];
    return NULL;
}

static int overlap(const partition_info *one, const partition_info *other) {
    for (unsigned int i = 0; i < one->numGpus; i++)
        for (unsigned int j = 0; j < other->numGpus; j++)
            if (one->gpuInfo[i].physicalId == other->gpuInfo[j].physicalId)
                return 1;
    return 0;
}

int fmLibInit(void) {
    if (initialised)
        return IN_USE;
    initialised = 1;
    printf("the library speaks");
    return OK;
}

int fmLibShutdown(void) {
    initialised = 0;
    return OK;
}

int fmConnect(connect_v2 *wanted, void **handle) {
    int unix_path;

    if (!initialised)
        return UNINITIALIZED;
    if (!wanted || !handle || !wanted->first.timeoutMs)
        return BADPARAM;
    if (wanted->first.version == VERSION_OF(connect_v2, 2))
        unix_path = wanted->addressType == 2;
    else if (wanted->first.version == VERSION_OF(connect_v1, 1))
        unix_path = wanted->first.addressIsUnixSocket;
    else
        return VERSION;
    if (!unix_path || access(wanted->first.addressInfo, R_OK))
        return NOT_VALID;
    snprintf(path, sizeof path, "%s", wanted->first.addressInfo);
    load();
    if (sdk == 1 && wanted->first.version != VERSION_OF(connect_v1, 1))
        return VERSION;
    while (!strcmp(hangs, "fmConnect"))
        sleep(1);
    if (!strcmp(fails, "fmConnect"))
        return code;
    *handle = path;
    return OK;
}

int fmDisconnect(void *handle) {
    return handle == path ? OK : BADPARAM;
}

int fmGetSupportedFabricPartitions(void *handle, partition_list *list) {
    int status = begin("fmGetSupportedFabricPartitions", handle);

    if (status)
        return status;
    if (list->version != VERSION_OF(partition_list, 1))
        return VERSION;
    table.version = list->version;
    *list = table;
    return OK;
}

int fmActivateFabricPartition(void *handle, unsigned int id) {
    int status = begin("fmActivateFabricPartition", handle);
    partition_info *one = find(id);

    note("activate %u\n", id);
    if (status)
        return status;
    if (!one)
        return BADPARAM;
    for (unsigned int i = 0; i < table.numPartitions; i++)
        if (table.partitionInfo[i].isActive && overlap(one, &table.partitionInfo[i]))
            return IN_USE;
    one->isActive = 1;
    if (strcmp(deafs, "fmActivateFabricPartition"))
        save();
    return OK;
}

int fmDeactivateFabricPartition(void *handle, unsigned int id) {
    int status = begin("fmDeactivateFabricPartition", handle);
    partition_info *one = find(id);

    note("deactivate %u\n", id);
    if (status)
        return status;
    if (!one)
        return BADPARAM;
    if (!one->isActive)
        return UNINITIALIZED;
    one->isActive = 0;
    if (strcmp(deafs, "fmDeactivateFabricPartition"))
        save();
    return OK;
}

int fmSetActivatedFabricPartitions(void *handle, active_list *list) {
    int status = begin("fmSetActivatedFabricPartitions", handle);

    note("set");
    for (unsigned int i = 0; i < list->numPartitions && i < 64; i++)
        note(" %u", list->partitionIds[i]);
    note("\n");
    if (status)
        return status;
    if (list->version != VERSION_OF(active_list, 1))
        return VERSION;
    if (strcmp(mode, "restarted"))
        return NOT_SUPPORTED;
    for (unsigned int i = 0; i < table.numPartitions; i++)
        table.partitionInfo[i].isActive = 0;
    for (unsigned int i = 0; i < list->numPartitions; i++) {
        partition_info *one = find(list->partitionIds[i]);
        if (!one)
            return BADPARAM;
        one->isActive = 1;
    }
    strcpy(mode, "shared");
    save();
    return OK;
}
