// Phases: a coroutine with the work of a hook on one bucket, which pauses at each collective.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

namespace q7x2 {

/// Owns a coroutine that has not begun. Each `resume` runs the body up to the next `co_await`; the
/// awaited object decides when to resume. If the body throws, that `resume` throws the exception.
class Phases {
 public:
  struct promise_type {
    Phases get_return_object() {
      return Phases(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }

    std::exception_ptr error;
  };

  Phases() = default;
  Phases(Phases&& other) noexcept : body_(std::exchange(other.body_, nullptr)) {}
  Phases& operator=(Phases&& other) noexcept {
    std::swap(body_, other.body_);
    return *this;
  }
  Phases(const Phases&) = delete;
  Phases& operator=(const Phases&) = delete;
  ~Phases() {
    if (body_) body_.destroy();
  }

  void resume() {
    body_.resume();
    if (body_.done() && body_.promise().error) std::rethrow_exception(body_.promise().error);
  }
  bool done() const { return body_.done(); }

 private:
  explicit Phases(std::coroutine_handle<promise_type> body) : body_(body) {}

  std::coroutine_handle<promise_type> body_;
};

}  // namespace q7x2
