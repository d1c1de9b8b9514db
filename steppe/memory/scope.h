// Scopes tag allocations; a thread's ledger receives them.
#pragma once

#include "steppe/memory/category.h"
#include "steppe/memory/ledger.h"

namespace steppe::memory {

// While alive, allocations of this thread carry `category`. The innermost scope wins.
class Scope {
 public:
  explicit Scope(Category category);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Category previous_;
};

Category current_category();

// While alive, this thread's allocations are booked to `ledger` (which must outlive every block it books: the
// allocator keeps the pointer in each block). Nested bindings restore the previous one.
class LedgerBinding {
 public:
  explicit LedgerBinding(Ledger& ledger);
  ~LedgerBinding();
  LedgerBinding(const LedgerBinding&) = delete;
  LedgerBinding& operator=(const LedgerBinding&) = delete;

 private:
  Ledger* previous_;
};

// The bound ledger of this thread, else the process's own, which is never destroyed.
Ledger& current_ledger();
Ledger& process_ledger();

}  // namespace steppe::memory
