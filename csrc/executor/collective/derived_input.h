// DerivedInput: the input of a call is computed from the result of an all-reduce.
//
// So nobody has to wait between two dependent calls. The all-reduce is a prerequisite of the other
// call, whose input is computed in a job before its first slice.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "executor/collective/prerequisite.h"

namespace q7x2 {

class DerivedInput final : public Prerequisite {
 public:
  /// `first`: the all-reduce. `derive` computes the input, and owns the memory of the all-reduce.
  DerivedInput(PlannedCall first, std::function<void()> derive)
      : Prerequisite(std::move(first)), derive_(std::move(derive)) {}

  std::unique_ptr<Job> absorb(Locked&) override { return std::make_unique<Deriving>(derive_); }

 private:
  class Deriving final : public Job {
   public:
    explicit Deriving(std::function<void()> derive) : derive_(std::move(derive)) {}

   private:
    void work() override { derive_(); }

    const std::function<void()> derive_;
  };

  const std::function<void()> derive_;
};

}  // namespace q7x2
