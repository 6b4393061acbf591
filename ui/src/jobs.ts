/** The pages of jobs, one file of the build. */
export { Job } from "./pages/Job";
export { Jobs } from "./pages/Jobs";
