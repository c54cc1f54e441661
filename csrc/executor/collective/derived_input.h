// DerivedInput: what a call reads is computed from what an all-reduce has brought.
//
// So two dependent calls need no wait between them: the first one is a prerequisite of the second
// one, whose input is derived in a job before its first slice.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "executor/collective/prerequisite.h"

namespace q7x2 {

class DerivedInput final : public Prerequisite {
 public:
  /// `first`: the all-reduce, over memory that `derive` keeps.
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
