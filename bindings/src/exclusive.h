// Objects that C++ says one thread may use at a time. Calls run without the GIL, so two Python
// threads could be inside one object; the second is refused.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "topkv/error.h"

namespace topkv::python {

/// Who is inside an object: nobody, one writer, or readers.
class Exclusive {
 public:
  /// Holds the object for a scope. what: the object, for the message ("the session").
  class Write {
   public:
    Write(Exclusive& object, const char* what) : users_(object.users_), writer_(object.writer_) {
      int nobody = 0;
      if (!users_.compare_exchange_strong(nobody, writer)) refuse(what);
      writer_ = std::this_thread::get_id();
    }
    ~Write() {
      writer_ = std::thread::id();
      users_ = 0;
    }
    Write(const Write&) = delete;  // belongs to one scope

   private:
    std::atomic<int>& users_;
    std::atomic<std::thread::id>& writer_;
  };

  class Read {
   public:
    Read(Exclusive& object, const char* what) : users_(object.users_) { enter(users_, what); }
    ~Read() { --users_; }
    Read(const Read&) = delete;  // belongs to one scope

   private:
    std::atomic<int>& users_;
  };

  /// As Read, for numbers that a callback of the writing call may ask for, too: that call waits for
  /// its callback, which runs on its thread.
  class Look {
   public:
    Look(Exclusive& object, const char* what)
        : users_(object.writer_ == std::this_thread::get_id() ? nullptr : &object.users_) {
      if (users_ != nullptr) enter(*users_, what);
    }
    ~Look() {
      if (users_ != nullptr) --*users_;
    }
    Look(const Look&) = delete;  // belongs to one scope

   private:
    std::atomic<int>* users_;
  };

 private:
  static constexpr int writer = -1;

  static void enter(std::atomic<int>& users, const char* what) {
    int readers = users;
    do {
      if (readers == writer) refuse(what);
    } while (!users.compare_exchange_weak(readers, readers + 1));
  }

  [[noreturn]] static void refuse(const char* what) {
    throw InvalidArgument(std::string(what) +
                          " is in use by another thread or by the call that runs this callback; "
                          "one thread at a time");
  }

  std::atomic<int> users_ = 0;
  std::atomic<std::thread::id> writer_ = {};
};

}  // namespace topkv::python
