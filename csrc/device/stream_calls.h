// StreamCalls: what q7x2 asks of a device's streams that c10 has no word for.
//
// A C interface without any other header, so that the extension of an accelerator can offer it.
// Every function returns 0, or a number that names its error.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// `stream` is what c10::Stream::native_handle returns. All functions may be called in any thread.
struct Q7x2StreamCalls {
  /// Of this struct, in bytes: a later version is longer.
  uint64_t size;
  /// The stream stops until the word at `flag` has reached `value`: until
  /// (int32_t)(*flag - value) >= 0. `flag` is in pinned host memory, and the host writes it.
  int (*wait_value)(void* stream, const uint32_t* flag, uint32_t value);
  /// Calls call(argument) once, in a thread of the host, when the stream has done all that came
  /// before. The call takes microseconds and calls nothing of the device.
  int (*call_host)(void* stream, void (*call)(void* argument), void* argument);
  /// *answer: whether the stream records its work for a graph, instead of doing it.
  int (*is_capturing)(void* stream, int* answer);
};

#ifdef __cplusplus
}
#endif
