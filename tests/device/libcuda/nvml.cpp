// libnvidia-ml.so.1. UCX's module for CUDA is linked to it and asks it for devices and NVLinks.
// This one has nothing to ask for, so UCX asks CUDA's driver and assumes that there are no NVLinks.

extern "C" const char* nvmlErrorString(int) {
  return "the stand-in has no NVML";
}
