// CUDA's driver: what UCX links to and this stand-in does not have. UCX then does without: it makes
// no memory by address ranges, in pools, or managed.
#include <cuda.h>

// The parameters of a function have no names here, so each is a line.
#define Q7X2_NOT_SUPPORTED(name, ...) \
  CUresult name(__VA_ARGS__) {        \
    return CUDA_ERROR_NOT_SUPPORTED;  \
  }

Q7X2_NOT_SUPPORTED(cuMemAllocManaged, CUdeviceptr*, size_t, unsigned)
Q7X2_NOT_SUPPORTED(cuMemRangeGetAttribute, void*, size_t, CUmem_range_attribute, CUdeviceptr,
                   size_t)
Q7X2_NOT_SUPPORTED(cuMemAddressReserve, CUdeviceptr*, size_t, size_t, CUdeviceptr,
                   unsigned long long)
Q7X2_NOT_SUPPORTED(cuMemAddressFree, CUdeviceptr, size_t)
Q7X2_NOT_SUPPORTED(cuMemCreate, CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                   unsigned long long)
Q7X2_NOT_SUPPORTED(cuMemRelease, CUmemGenericAllocationHandle)
Q7X2_NOT_SUPPORTED(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                   unsigned long long)
Q7X2_NOT_SUPPORTED(cuMemUnmap, CUdeviceptr, size_t)
Q7X2_NOT_SUPPORTED(cuMemSetAccess, CUdeviceptr, size_t, const CUmemAccessDesc*, size_t)
Q7X2_NOT_SUPPORTED(cuMemGetAllocationGranularity, size_t*, const CUmemAllocationProp*,
                   CUmemAllocationGranularity_flags)
Q7X2_NOT_SUPPORTED(cuMemGetAllocationPropertiesFromHandle, CUmemAllocationProp*,
                   CUmemGenericAllocationHandle)
Q7X2_NOT_SUPPORTED(cuMemRetainAllocationHandle, CUmemGenericAllocationHandle*, void*)
Q7X2_NOT_SUPPORTED(cuMemExportToShareableHandle, void*, CUmemGenericAllocationHandle,
                   CUmemAllocationHandleType, unsigned long long)
Q7X2_NOT_SUPPORTED(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle*, void*,
                   CUmemAllocationHandleType)
Q7X2_NOT_SUPPORTED(cuMemPoolExportToShareableHandle, void*, CUmemoryPool, CUmemAllocationHandleType,
                   unsigned long long)
Q7X2_NOT_SUPPORTED(cuMemPoolImportFromShareableHandle, CUmemoryPool*, void*,
                   CUmemAllocationHandleType, unsigned long long)
Q7X2_NOT_SUPPORTED(cuMemPoolExportPointer, CUmemPoolPtrExportData*, CUdeviceptr)
Q7X2_NOT_SUPPORTED(cuMemPoolImportPointer, CUdeviceptr*, CUmemoryPool, CUmemPoolPtrExportData*)
Q7X2_NOT_SUPPORTED(cuMemPoolSetAccess, CUmemoryPool, const CUmemAccessDesc*, size_t)
Q7X2_NOT_SUPPORTED(cuMemPoolDestroy, CUmemoryPool)
