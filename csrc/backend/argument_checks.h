// Checks of the arguments of c10d calls, before anything is sent. The error texts are those that
// c10d's users know.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/torch_compat.h"

namespace q7x2 {

using Tensors = std::vector<at::Tensor>;
using Complain = std::function<void(const std::string&)>;

// Returns a function that raises the errors of c10d's argument checks. The name of the call
// precedes each text.
inline Complain complain(const char* call) {
  return [call](const std::string& message) {
    TORCH_CHECK(false, "ProcessGroupQ7x2::", call, ": ", message);
  };
}

// c10d has helpers with the same texts, but not in the oldest torch that q7x2 builds with.
inline void require(const Complain& fn, bool condition, const std::string& message) {
  if (!condition) {
    fn(message);
  }
}

inline void require_list_of_lists(const Complain& fn, const std::string& what,
                                  const std::vector<Tensors>& lists, int size) {
  require(fn, lists.size() == 1,
          c10::str("requires a single-element ", what, " list containing a list with ", size,
                   " tensors."));
  require(fn, lists[0].size() == static_cast<size_t>(size),
          c10::str("Incorrect ", what, " list size ", lists[0].size(), ". ",
                   what == "input" ? "Input" : "Output", " list size should be ", size,
                   ", same as size of the process group."));
}

inline void check_tensors(const Complain& fn, const Tensors& tensors) {
  c10d::assertNonEmpty(fn, tensors);
  c10d::assertLayoutMatch(fn, tensors);
  c10d::assertDense(fn, tensors);
  c10d::assertTypeAndSizesMatch(fn, tensors);
}

inline void check_dense(const Complain& fn, const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    c10d::assertDense(fn, tensor);
  }
}

inline void check_same_type(const Complain& fn, const at::Tensor& expected,
                            const Tensors& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    c10d::assertTypeMatch(fn, expected.options(), tensors, i);
  }
}

}  // namespace q7x2
