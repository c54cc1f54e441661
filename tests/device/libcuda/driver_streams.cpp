// CUDA's driver: streams, events and copies, which are counted.
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include <cuda.h>

#include "copies.h"
#include "memory.h"
#include "streams.h"

// CUDA says no more of these types.
struct CUstream_st : fake_cuda::Stream {};
struct CUevent_st : fake_cuda::Event {};

namespace {

using fake_cuda::Place;

struct Counter {
  std::atomic<uint64_t> copies{0};
  std::atomic<uint64_t> bytes{0};

  void add(size_t count) {
    ++copies;
    bytes += count;
  }
  void clear() { copies = bytes = 0; }
};

Counter to_device;
Counter to_host;
Counter on_device;
Counter peer;

[[maybe_unused]] const int kForgetsAtFork = pthread_atfork(nullptr, nullptr, [] {
  for (Counter* counter : {&to_device, &to_host, &on_device, &peer}) counter->clear();
});

void count(const Place& to, const Place& from, size_t bytes) {
  if (to.is_imported || from.is_imported) {
    peer.add(bytes);
  } else if (to.is_on_device && from.is_on_device) {
    on_device.add(bytes);
  } else if (to.is_on_device) {
    to_device.add(bytes);
  } else if (from.is_on_device) {
    to_host.add(bytes);
  }
}

CUresult copy(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream) {
  if (fake_cuda::in_host_function()) return CUDA_ERROR_NOT_PERMITTED;
  const auto to = fake_cuda::place(destination, bytes);
  const auto from = fake_cuda::place(source, bytes);
  if (!to || !from) return CUDA_ERROR_INVALID_VALUE;
  count(*to, *from, bytes);
  const auto work = [to = to->at, from = from->at, bytes] { std::memcpy(to, from, bytes); };
  if (stream == nullptr) {
    work();
  } else {
    stream->enqueue(work);
  }
  return CUDA_SUCCESS;
}

CUdeviceptr address_of(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

}  // namespace

void fake_cuda_copies(FakeCudaCopies* copies) {
  *copies = {to_device.copies, to_device.bytes, to_host.copies, to_host.bytes,
             on_device.copies, on_device.bytes, peer.copies,    peer.bytes};
}

CUresult cuMemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream) {
  return copy(destination, source, bytes, stream);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
                           CUstream stream) {
  return copy(destination, source, bytes, stream);
}

CUresult cuMemcpyHtoD(CUdeviceptr destination, const void* source, size_t bytes) {
  return copy(destination, address_of(source), bytes, nullptr);
}

CUresult cuMemcpyDtoH(void* destination, CUdeviceptr source, size_t bytes) {
  return copy(address_of(destination), source, bytes, nullptr);
}

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  *stream = new CUstream_st();
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
  delete stream;
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  if (stream != nullptr) stream->synchronize();
  return CUDA_SUCCESS;
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* argument, unsigned) {
  if (stream == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  stream->enqueue(
      [=] { fake_cuda::call_host_function([=] { callback(stream, CUDA_SUCCESS, argument); }); });
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* argument) {
  if (fake_cuda::in_host_function()) return CUDA_ERROR_NOT_PERMITTED;
  if (stream == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  stream->enqueue([=] { fake_cuda::call_host_function([=] { function(argument); }); });
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                             unsigned flags) {
  if (stream == nullptr || flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_NOT_SUPPORTED;
  const auto word = fake_cuda::place(address, sizeof(value));
  if (!word) return CUDA_ERROR_INVALID_VALUE;
  stream->enqueue([value, at = reinterpret_cast<cuuint32_t*>(word->at)] {
    const std::atomic_ref<cuuint32_t> now(*at);
    while (static_cast<int32_t>(now.load(std::memory_order_acquire) - value) < 0)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  });
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;  // it has no graphs
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned) {
  *event = new CUevent_st();
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  delete event;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  event->record(stream);
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  return event->is_complete() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
