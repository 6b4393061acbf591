/** A program that stores one job, for pages that have none to show. */
export function firstJob(storage: string): string {
  return `from treadle import App

app = App(${JSON.stringify(storage)})


@app.task
async def hello(name: str) -> str:
    return f"hello {name}"


async def main() -> None:
    async with app:
        await hello.enqueue("Ada")`;
}
