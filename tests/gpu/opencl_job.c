/* SPDX-License-Identifier: Apache-2.0
 * A job for the first OpenCL device that there is.
 *   opencl_job check    a kernel over 65,536 values, each of which is checked
 *   opencl_job hold     the same again and again, until it is ended
 *   opencl_job measure  one line a figure: its name and the best time in microseconds
 * Times are the best of the repetitions: other load only ever adds. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define N 65536
#define REPEAT 15
#define OK(call) do { cl_int status_ = (call); if (status_) { \
    fprintf(stderr, "line %d: OpenCL error %d\n", __LINE__, status_); exit(2); } } while (0)

static const char *source =
    "kernel void saxpy(global float *y, global const float *x, float a)\n"
    "{ size_t i = get_global_id(0); y[i] = a * x[i] + y[i]; }\n"
    "kernel void nothing(global float *y) { }\n"
    "kernel void work(global float *y, int rounds)\n"
    "{ size_t i = get_global_id(0); float v = y[i];\n"
    "  for (int k = 0; k < rounds; k++) v = fma(v, 0.999f, 0.001f); y[i] = v; }\n";

static cl_device_id device;
static cl_context context;
static cl_command_queue queue;
static cl_program program;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static cl_mem buffer_of(size_t bytes)
{
    cl_int error;
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, &error);
    OK(error);
    return buffer;
}

static cl_kernel kernel_of(const char *name)
{
    cl_int error;
    cl_kernel kernel = clCreateKernel(program, name, &error);
    OK(error);
    return kernel;
}

static void start(void)
{
    cl_platform_id platforms[8];
    cl_uint count = 0;
    cl_int error;
    char name[256] = "";
    OK(clGetPlatformIDs(8, platforms, &count));
    for (cl_uint i = 0; i < count && !device; i++)
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 1, &device, NULL))
            device = 0;
    if (!device) {
        puts("no device");
        exit(3);
    }
    OK(clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name, name, NULL));
    printf("device %s\n", name);
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    OK(error);
    queue = clCreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &error);
    OK(error);
    program = clCreateProgramWithSource(context, 1, &source, NULL, &error);
    OK(error);
    OK(clBuildProgram(program, 1, &device, "", NULL, NULL));
}

static int wrong_values(void)
{
    static float x[N], y[N], result[N];
    static cl_mem in, out;
    static cl_kernel saxpy;
    float a = 3;
    size_t count = N;
    int wrong = 0;
    /* Made once: PoCL-R's client (6.0) dies when a job makes them anew some hundred times. */
    if (!saxpy) {
        in = buffer_of(sizeof x);
        out = buffer_of(sizeof y);
        saxpy = kernel_of("saxpy");
    }
    for (int i = 0; i < N; i++) {
        x[i] = rand() % 1000;
        y[i] = rand() % 1000;
    }
    OK(clEnqueueWriteBuffer(queue, in, 1, 0, sizeof x, x, 0, 0, 0));
    OK(clEnqueueWriteBuffer(queue, out, 1, 0, sizeof y, y, 0, 0, 0));
    OK(clSetKernelArg(saxpy, 0, sizeof out, &out));
    OK(clSetKernelArg(saxpy, 1, sizeof in, &in));
    OK(clSetKernelArg(saxpy, 2, sizeof a, &a));
    OK(clEnqueueNDRangeKernel(queue, saxpy, 1, 0, &count, 0, 0, 0, 0));
    OK(clEnqueueReadBuffer(queue, out, 1, 0, sizeof y, result, 0, 0, 0));
    for (int i = 0; i < N; i++)
        wrong += result[i] != a * x[i] + y[i];
    return wrong;
}

/* Seconds that the device itself says it computed. */
static double time_of(cl_event kernel)
{
    cl_ulong begun = 0, ended = 0;
    OK(clGetEventProfilingInfo(kernel, CL_PROFILING_COMMAND_START, sizeof begun, &begun, NULL));
    OK(clGetEventProfilingInfo(kernel, CL_PROFILING_COMMAND_END, sizeof ended, &ended, NULL));
    return (ended - begun) * 1e-9;
}

static void measure(void)
{
    size_t one = 1, group = 64, longest = 4 << 20, job = 1 << 20, count = job / 4;
    char *host = calloc(1, longest);
    cl_mem buffer = buffer_of(longest);
    cl_kernel nothing = kernel_of("nothing"), work = kernel_of("work");
    OK(clSetKernelArg(nothing, 0, sizeof buffer, &buffer));
    OK(clSetKernelArg(work, 0, sizeof buffer, &buffer));
    OK(clEnqueueWriteBuffer(queue, buffer, 1, 0, longest, host, 0, 0, 0));
    double best = 1e9;
    for (int i = 0; i < REPEAT + 1; i++) {
        double begun = now();
        OK(clEnqueueNDRangeKernel(queue, nothing, 1, 0, &one, 0, 0, 0, 0));
        OK(clFinish(queue));
        if (i && now() - begun < best)
            best = now() - begun;
    }
    printf("launch %.1f\n", best * 1e6);
    for (size_t size = 1024; size <= longest; size *= 4)
        for (int out = 0; out < 2; out++) {
            best = 1e9;
            for (int i = 0; i < REPEAT; i++) {
                double begun = now();
                if (out)
                    OK(clEnqueueReadBuffer(queue, buffer, 1, 0, size, host, 0, 0, 0));
                else
                    OK(clEnqueueWriteBuffer(queue, buffer, 1, 0, size, host, 0, 0, 0));
                if (now() - begun < best)
                    best = now() - begun;
            }
            printf("%s-%zu %.1f\n", out ? "out" : "in", size, best * 1e6);
        }
    for (int rounds = 8; rounds <= 512; rounds *= 8) {
        double computed = 0;
        best = 1e9;
        OK(clSetKernelArg(work, 1, sizeof rounds, &rounds));
        for (int i = 0; i < 5; i++) {
            cl_event kernel;
            double begun = now();
            OK(clEnqueueWriteBuffer(queue, buffer, 1, 0, job, host, 0, 0, 0));
            OK(clEnqueueNDRangeKernel(queue, work, 1, 0, &count, &group, 0, 0, &kernel));
            OK(clEnqueueReadBuffer(queue, buffer, 1, 0, job, host, 0, 0, 0));
            if (now() - begun < best) {
                best = now() - begun;
                computed = time_of(kernel);
            }
            OK(clReleaseEvent(kernel));
        }
        printf("job-%d %.1f\n", rounds, best * 1e6);
        printf("computing-%d %.1f\n", rounds, computed * 1e6);
    }
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "check";
    int wrong;
    start();
    wrong = wrong_values();
    printf("%d values, %d wrong\n", N, wrong);
    fflush(stdout);
    if (!strcmp(verb, "measure"))
        measure();
    while (!strcmp(verb, "hold") && !wrong) {
        struct timespec pause = {0, 50000000};
        nanosleep(&pause, NULL);
        wrong = wrong_values();
    }
    return wrong != 0;
}
