/* A stand-in for NVIDIA's libnvidia-ml.so.1 with two GPUs; FAKE_NVML_INIT is what nvmlInit returns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned long long total, free, used; } Memory;

static int devices[2] = {0, 1};

int nvmlInit_v2(void) { const char *code = getenv("FAKE_NVML_INIT"); return code ? atoi(code) : 0; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &devices[index]; return 0; }
int nvmlDeviceGetUUID(int *device, char *text, unsigned size) { snprintf(text, size, "GPU-%d", 70 + *device); return 0; }
int nvmlDeviceGetName(int *device, char *text, unsigned size) { (void)device; snprintf(text, size, "A100"); return 0; }
int nvmlDeviceGetMemoryInfo(int *device, Memory *memory) {
    memset(memory, 0, sizeof *memory);
    memory->total = (unsigned long long)(40 - *device) << 30;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(int *device, int *major, int *minor) {
    *major = 8;
    *minor = 6 * *device;
    return 0;
}
