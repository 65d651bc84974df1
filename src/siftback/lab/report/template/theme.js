"use strict";
// Before the page is painted: that a script runs, and the colours chosen at the last visit.
document.documentElement.classList.add("js");
try {
  const theme = localStorage.getItem("siftback-theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // A browser may keep no storage for files; the system's colours it is.
}
